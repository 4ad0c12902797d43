"""Proof of the advisor's predictions: runs on hosts with shaped links, compared with what was predicted for them."""

"""Launches of topologies as runs on hosts."""

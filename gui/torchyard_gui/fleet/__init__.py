"""The Fleet page: hosts, their status, and actions on them."""

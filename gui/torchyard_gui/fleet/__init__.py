"""The Fleet page: hosts, their state, and actions on them."""

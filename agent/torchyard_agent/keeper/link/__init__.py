"""Connections between the keepers of a run, and the join store."""

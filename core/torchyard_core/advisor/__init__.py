"""Predictions of step times on other topologies, and recommendations. Pure: no hosts, no disk but profile files."""

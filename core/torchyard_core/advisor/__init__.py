"""Predictions of step times on other topologies, and recommendations.

The package contacts no hosts, and accesses no files except profiles.
"""

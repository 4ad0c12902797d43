"""Predicts the step times of topologies from profiles, and recommends topologies.

The package contacts no hosts, and accesses no files except profiles.
"""

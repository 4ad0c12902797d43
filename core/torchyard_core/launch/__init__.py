"""Launches topologies as runs on hosts."""

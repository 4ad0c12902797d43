"""Checkpoint folders on hosts, their copies on other hosts, and their restoration before a restart."""

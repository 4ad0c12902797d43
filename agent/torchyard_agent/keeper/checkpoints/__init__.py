"""Checkpoint folders on hosts, copies of checkpoints on other hosts, and their restoration before a restart."""

"""Manages checkpoint folders on hosts, copies checkpoints to other hosts, and restores them before a restart."""

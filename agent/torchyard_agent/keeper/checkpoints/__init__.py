"""Checkpoints on hosts: their folders, their copies on other hosts, and their restoration before a restart."""

"""Checkpoints on hosts: their folders, their copies on other hosts, and what a restart begins with."""

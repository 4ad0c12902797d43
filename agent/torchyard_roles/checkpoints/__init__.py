"""Checkpoints: their files, saving, restoring and evaluation, and the group of processes that save together."""

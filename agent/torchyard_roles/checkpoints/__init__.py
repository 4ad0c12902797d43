"""Checkpoints: their files, saving, restoring, evaluation, and the group of processes that save together."""

"""Checkpoints: files, saving, restoring, evaluation, and the group that saves together."""

"""Slurm as an engine: it allocates the nodes of a run, and Torchyard's keepers run inside the allocation."""

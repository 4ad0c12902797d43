"""Engines, which provide the hosts of runs. No code outside this folder depends on which engine runs a topology."""

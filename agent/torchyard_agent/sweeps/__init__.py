"""The coordinator of a sweep: a process on the primary host that chooses parameters with Optuna and starts trials.

It runs in the Python of the programs. Only `study` imports Optuna; no other part of the agent imports this package.
"""

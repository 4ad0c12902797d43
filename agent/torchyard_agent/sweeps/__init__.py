"""The coordinator of a sweep: a process on the primary host that chooses parameters with Optuna and starts trials.

It runs under the Python of the training programs. Only the module `study` imports Optuna, and no other part of the
agent imports this package.
"""

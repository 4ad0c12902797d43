"""The run keeper: a small process per run and host, parent and subreaper of the run's ranks there.

The keeper on the primary host also decides about failures, restarts and the end of the run: `decisions` is pure,
`processes` runs this host's ranks, `link` connects the keepers, and `checkpoints` replicates checkpoints.
"""

"""The run keeper: one small process per run and host, parent and subreaper of the ranks there.

On the primary host (the chief's) it also decides: what counts as a failure, when the run has ended, what is
stopped. `policy` decides without I/O; `share` runs this host's ranks; `gang` speaks with the other keepers.
"""

"""The run keeper: one small process per run and host, which starts, watches and reaps the run's ranks.

The keeper on the primary host also decides about failures, restarts and the end of the run. The package `decisions`
contains these decisions as pure functions, `processes` runs the ranks of its host, `link` connects the keepers, and
`checkpoints` copies checkpoints between hosts.
"""

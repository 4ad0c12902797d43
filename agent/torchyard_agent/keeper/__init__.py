"""The keeper: one small process per run and host. It starts, supervises and reaps the run's ranks.

One keeper of a run, the primary, also decides how failures are handled, when ranks are restarted, and when the run
ends. The package `decisions` contains these decisions as pure functions, `processes` runs the ranks of a host, `link`
connects the keepers, and `checkpoints` copies checkpoints between hosts.
"""

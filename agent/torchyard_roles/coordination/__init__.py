"""Coordination between the processes of a run: the join store, collective calls, consistency checks and stops."""

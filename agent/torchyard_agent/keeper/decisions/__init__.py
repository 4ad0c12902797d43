"""The primary's decisions as pure functions from events to instructions: states, restarts, replication and schedule."""

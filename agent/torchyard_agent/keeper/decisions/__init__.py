"""The primary's decisions, from events to instructions: states, restarts, replication, bookings, schedule. Pure."""

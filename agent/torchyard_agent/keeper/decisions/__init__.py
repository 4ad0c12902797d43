"""What the primary decides, from events to instructions: restarts, replication, bookings, schedule."""

"""The team's GPU calendar: bookings, rules and search as pure functions, and the database in `store`."""

"""The team's GPU calendar: bookings, rules and search as pure functions, and access to the database in `store`."""

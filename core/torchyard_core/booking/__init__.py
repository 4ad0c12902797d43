"""The team's GPU calendar. Bookings, rules and searches are pure functions; `store` accesses the database."""

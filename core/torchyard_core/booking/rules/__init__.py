"""The rules of a team: what may be booked, by whom and when."""

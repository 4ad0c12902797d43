"""The Fleet page: hosts with their state, and what can be done about each."""

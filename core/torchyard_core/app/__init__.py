"""Use cases that the command line and the window share: launches, restarts, bookings, the calendar and others."""

"""Use cases of the command line and the window: launches, restarts, bookings, the calendar, settings, undeploying."""

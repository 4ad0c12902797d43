"""The drawers beside the calendar: details, find a slot, waitlist."""

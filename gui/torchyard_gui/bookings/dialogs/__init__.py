"""The dialogs of the Bookings page."""

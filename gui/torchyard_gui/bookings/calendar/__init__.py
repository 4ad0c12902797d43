"""The calendar of the Bookings page: geometry, painting, input."""

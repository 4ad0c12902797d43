"""The calendar of the Bookings page: its geometry, painting and input."""

"""The Bookings page: the team's GPUs as a calendar."""

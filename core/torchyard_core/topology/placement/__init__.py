"""Which replica runs on which host and GPU."""

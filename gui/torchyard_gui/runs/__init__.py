"""The Runs page: which runs there are, and one of them as it goes on."""

"""Journeys: each module has a function `journey(user)`, performed by `python -m tests.window.run`."""

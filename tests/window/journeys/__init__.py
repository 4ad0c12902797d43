"""Journeys through the window. Each module has a function `journey(user)`; `python -m tests.window.run` performs it."""

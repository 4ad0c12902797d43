"""Journeys: scenarios in which a simulated user operates the real window.

Each module has a function `journey(user)`, which `python -m tests.window.run` calls.
"""

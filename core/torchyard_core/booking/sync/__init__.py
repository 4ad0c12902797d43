"""Copies of the calendar: on this computer, and on hosts for their agents."""

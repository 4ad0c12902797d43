"""The log dock of the Runs page."""

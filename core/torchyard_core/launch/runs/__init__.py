"""Runs that were launched: history, state, logs, downloads."""

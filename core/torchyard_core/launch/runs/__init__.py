"""Runs after their launch: history, state, logs and downloads."""

"""Launched runs: history, state, logs and downloads."""

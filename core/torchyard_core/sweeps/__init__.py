"""Sweeps: search files, their checks, and the trials of a study. Only search files are read from disk."""

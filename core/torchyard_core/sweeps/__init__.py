"""Sweeps: search files, their checks, and the trials of a study. Pure, except for reading files."""

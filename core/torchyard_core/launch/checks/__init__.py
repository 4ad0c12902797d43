"""Preflight: the checks before a launch."""

"""Preflight checks of a launch."""

"""The preflight checks of a launch."""

"""Checks of all texts that the window paints, at several window sizes and scales."""

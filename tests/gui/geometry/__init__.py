"""Checks of all text that the window paints, at several window sizes and scales."""

"""Checks of every text that the window paints, at several sizes and scales."""

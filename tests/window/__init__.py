"""Journeys through the window: the real program on a virtual display, with pointer and keys of another process."""

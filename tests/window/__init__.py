"""Tests of the real window on a virtual display. Another process sends the pointer and key events."""

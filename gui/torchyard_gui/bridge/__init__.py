"""Models that connect the GUI thread with background work. All threads of the window are started in this package."""

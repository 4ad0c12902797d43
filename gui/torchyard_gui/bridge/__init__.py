"""Models that connect the GUI thread with background work. Only this package starts threads of the window."""

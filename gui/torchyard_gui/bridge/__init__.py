"""Models between the GUI thread and background work. Only this package starts threads of the window."""

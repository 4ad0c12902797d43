"""Models between the GUI thread and background work; the only package of the window with threads."""

"""Between the window's thread and the work beside it: the only place with threads."""

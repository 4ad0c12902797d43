"""The main window, its parts, and the connections between the pages."""

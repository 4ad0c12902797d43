"""The main window and its own parts."""

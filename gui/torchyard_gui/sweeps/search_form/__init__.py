"""The dialog with which the user writes a search file and starts a sweep."""

"""The panel at the right: what is selected, and all that can be changed about it."""

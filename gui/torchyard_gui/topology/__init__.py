"""The Topology page, on which the user edits a topology."""

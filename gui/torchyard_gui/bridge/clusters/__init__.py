"""Models of the clusters in the fleet file: their checks, and the lanes of their nodes in the calendar."""

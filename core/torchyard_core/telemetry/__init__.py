"""What hosts measure while a run is watched, as values: nothing here asks a host or draws a pixel."""

"""The topology document: program, pools, strategy and placement. Pure except for reading and writing its file."""

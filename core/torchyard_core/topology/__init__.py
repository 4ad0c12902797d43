"""The topology document: program, pools, strategy and placement."""

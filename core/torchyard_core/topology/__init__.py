"""The topology document: program, pools, strategy and placement. All modules except the file access are pure."""

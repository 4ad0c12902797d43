"""The topology document: what is to run, and on which hosts. Pure, but for reading and writing its file."""

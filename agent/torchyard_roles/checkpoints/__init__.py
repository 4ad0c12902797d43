"""What is kept of a training, so that it can go on after any failure: files, when to write them, what to read."""

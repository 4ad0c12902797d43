"""What hands do on the canvas: one gesture a file, each with a move, an end and a way to call it off."""

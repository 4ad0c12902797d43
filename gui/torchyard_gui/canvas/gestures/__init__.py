"""Mouse gestures on the canvas."""

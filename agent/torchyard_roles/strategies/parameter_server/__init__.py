"""Sandblaster and downpour: parameter servers and the workers' side of them."""

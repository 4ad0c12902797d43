"""The formats of other systems, with one module per format."""

"""The formats of other systems, one module for each."""

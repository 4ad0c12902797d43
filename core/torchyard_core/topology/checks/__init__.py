"""Validation of a topology, with one module per subject."""

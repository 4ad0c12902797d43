"""Validation of a topology, one module for each subject."""

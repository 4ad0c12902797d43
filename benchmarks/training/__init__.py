"""Benchmarks of the training roles."""

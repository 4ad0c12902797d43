"""Plots of runs: over time, of several runs by step, and small ones."""

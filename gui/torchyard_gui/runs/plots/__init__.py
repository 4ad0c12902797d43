"""Plots of runs: plots over time, comparisons of several runs, and small plots."""

"""Edges between pools: routes, painting."""

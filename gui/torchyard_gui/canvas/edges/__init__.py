"""Edges between hosts: how they are routed and painted."""

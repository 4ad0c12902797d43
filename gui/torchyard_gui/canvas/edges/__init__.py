"""Edges between hosts: routes and painting."""

"""Hosts as racks, with their slots and chips."""

"""Hosts as racks with slots and chips."""

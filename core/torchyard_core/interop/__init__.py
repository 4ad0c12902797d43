"""Imports other systems' documents as topologies, and exports topologies as such documents.

Each module of `formats` has a function `read`, `write` or both. `format_registry` lists the formats.
"""

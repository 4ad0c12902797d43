"""Import of other systems' documents as topologies, and export of topologies as such documents.

Each module of `formats` has a function `read`, `write` or both. `format_registry` lists the formats.
"""

"""Import of other systems' documents as topologies, and export of topologies as such documents.

Each module of `formats` has `read`, `write` or both; `format_registry` lists them.
"""

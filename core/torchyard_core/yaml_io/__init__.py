"""YAML with positions: parsing, validation against models, writing."""

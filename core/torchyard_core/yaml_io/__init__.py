"""YAML with positions: parsing, validation against models, and output."""

"""YAML with positions: reading, validation against models, writing."""

"""The Topology page: editor of a topology."""

"""The Topology page: editor of the document."""

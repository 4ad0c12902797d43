"""The Topology page: the document, drawn and edited."""

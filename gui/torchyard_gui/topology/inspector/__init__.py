"""The inspector: the panel on the right with all settings of the selected replicas or of the topology."""

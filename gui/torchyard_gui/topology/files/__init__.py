"""Files of the Topology page: open, save, autosave, import and export."""

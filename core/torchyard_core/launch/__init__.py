"""From a topology to a run on its hosts."""

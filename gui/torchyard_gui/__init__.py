"""The window of Torchyard: draw a topology, launch it, watch it live."""

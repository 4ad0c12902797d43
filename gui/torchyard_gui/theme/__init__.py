"""Colours, type, metrics and icons: the one place that knows what things look like."""

"""Colours, fonts, metrics and icons."""

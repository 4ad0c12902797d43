"""Descriptors of the training strategies: traffic, costs, settings, checks and presets."""

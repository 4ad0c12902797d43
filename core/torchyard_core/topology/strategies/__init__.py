"""The strategies of training: their traffic, costs and presets."""

"""The strategies of training: traffic, costs, presets."""

"""Measures a training script's steps, to predict the script's speed on other topologies."""

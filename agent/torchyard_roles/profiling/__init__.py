"""Measurement of the steps of a training script, for predictions of its speed on other topologies."""

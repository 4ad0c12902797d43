"""The Advice drawer of the Topology page, with predictions, recommendations and the measurement of the script."""

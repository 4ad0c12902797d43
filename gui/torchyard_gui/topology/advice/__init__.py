"""The Advice drawer of the Topology page: predictions, recommendations and the measurement of the script."""

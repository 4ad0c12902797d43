"""The Runs page: list of runs, and the state of one run."""

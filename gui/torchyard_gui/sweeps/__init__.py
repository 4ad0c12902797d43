"""The Sweeps page: list of sweeps, and the trials of one sweep as a table and as plots."""

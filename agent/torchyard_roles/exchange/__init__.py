"""Exchanges tensors between processes: authenticated connections, parameter layouts and the staging of chunks."""

"""The canvas: hosts as racks with slots, replicas as chips, traffic as edges; for the design and for live runs."""

"""The canvas: hosts as racks with slots, replicas as chips, and traffic as edges, for a topology or a live run."""

"""The canvas: hosts as racks with slots, replicas as chips, and traffic as edges, for designs and for live runs."""

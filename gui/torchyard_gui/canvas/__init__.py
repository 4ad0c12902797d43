"""The canvas: hosts as racks with slots, replicas as chips in them, traffic as edges. One scene, in design and live."""

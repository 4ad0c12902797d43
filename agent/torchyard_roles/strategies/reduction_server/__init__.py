"""Reduction servers: reducers sum the gradients of the hosts."""

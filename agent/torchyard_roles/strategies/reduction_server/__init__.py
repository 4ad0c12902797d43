"""The strategy reduction_server: reducers sum the gradients of all hosts."""

"""The strategy reduction_server, in which reducers sum the gradients of all hosts."""

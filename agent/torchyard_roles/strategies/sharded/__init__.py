"""Training of models that are larger than a GPU: parameters, gradients and optimizer state are sharded over ranks."""

"""Trains models that do not fit on one GPU: parameters, gradients and optimizer state are sharded over ranks."""

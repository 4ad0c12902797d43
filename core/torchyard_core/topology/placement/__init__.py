"""Placement: the assignment of replicas to hosts and GPUs."""

"""Placement: assignment of replicas to hosts and GPUs."""

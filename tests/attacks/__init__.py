"""Attacks that succeeded once: each is played on real hosts and sockets, and must fail."""

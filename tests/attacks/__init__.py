"""Attacks that succeeded once, repeated on real hosts and sockets: each must fail."""

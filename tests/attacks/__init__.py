"""Attacks that were once successful, repeated on real hosts and sockets: each must fail."""

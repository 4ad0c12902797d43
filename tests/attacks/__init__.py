"""Repetitions of attacks that were once successful, on real hosts and sockets; each attack must fail."""

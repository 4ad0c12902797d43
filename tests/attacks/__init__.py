"""Tests that repeat attacks that once succeeded, on real hosts and sockets. Each attack must fail now."""

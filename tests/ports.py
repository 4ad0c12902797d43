"""Ports for programs that tests start, and that want to be told one."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from itertools import count

_numbers = count()


def free_port() -> int:
    """One that nobody else is given before its user comes: below those that the system hands out by itself, and apart
    from those of the other processes that run tests."""
    runner = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]) % 9
    while True:
        port = 10_000 + 1000 * runner + next(_numbers) % 1000
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port

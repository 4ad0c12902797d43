"""Free TCP ports for programs that tests start. Test processes that run in parallel never get the same port."""

from __future__ import annotations

import socket
from contextlib import suppress
from functools import cache
from itertools import count

FIRST, BLOCK, BLOCKS = 10_000, 500, 45
"""First port, ports per block, and number of blocks; all ports are below the range of ephemeral ports."""

_numbers = count()


def free_port() -> int:
    """Returns a free port of this process's own block."""
    first = FIRST + BLOCK * _own_block()[0]
    while True:
        port = first + next(_numbers) % BLOCK
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


@cache
def _own_block() -> tuple[int, socket.socket]:
    """Locks a block of ports until this process exits; returns its number and the socket that holds the lock."""
    for number in range(BLOCKS):
        name = socket.socket(socket.AF_UNIX)
        try:
            name.bind(f"\0torchyard-test-ports/{number}")
        except OSError:
            name.close()
            continue
        return number, name
    raise AssertionError(f"{BLOCKS} processes run tests here at once: there is no block of ports left")

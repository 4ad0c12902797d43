"""The connections of a process that listens: those that are open, and the bytes over all that there ever were."""

from __future__ import annotations

import threading

from torchyard_roles.exchange.tensor_connection import Connection


class Connections:
    """May be used from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: set[Connection] = set()
        self._past = (0, 0)

    def __len__(self) -> int:
        return len(self._open)

    def add(self, connection: Connection) -> None:
        with self._lock:
            self._open.add(connection)

    def remove(self, connection: Connection) -> None:
        """It has ended; its bytes stay counted."""
        with self._lock:
            self._open.discard(connection)
            sent, received = self._past
            self._past = sent + connection.sent_bytes, received + connection.received_bytes

    def traffic(self) -> tuple[int, int]:
        """Bytes sent and received so far."""
        with self._lock:
            sent, received = self._past
            for connection in self._open:
                sent, received = sent + connection.sent_bytes, received + connection.received_bytes
            return sent, received

    def close(self) -> None:
        """Cut all that are open now; the thread that serves one closes it."""
        with self._lock:
            those = list(self._open)
        for connection in those:
            connection.cut()

"""Callers of a listening socket until they have proved that they know the run's key.

Strangers can connect to every port on the data network. At most STRANGERS of them are held at a time, so that they
exhaust no descriptors; an accept() that fails ends nothing; and refusals are counted rather than logged one by one.
"""

from __future__ import annotations

import errno
import socket
import sys
import threading
import time
from contextlib import suppress
from typing import Any

from torchyard_agent.protocol.authenticated_transport import Refusals
from torchyard_roles.errors import PeerLost, ProtocolError
from torchyard_roles.exchange.tensor_connection import Connection

STRANGERS = 128
"""Connections that have not proved themselves yet; beyond, the oldest is ended."""
PAUSE_S = 0.05
"""After an accept() that failed, as for want of descriptors: those who have a connection go on."""
_IS_CLOSED = (errno.EBADF, errno.EINVAL, errno.ENOTSOCK)


class Admission:
    """Accepts callers of `listener` on one thread, and authenticates each on a thread of the owner's."""

    def __init__(self, listener: socket.socket, key: bytes, name: str) -> None:
        self.refusals = Refusals()
        self._listener = listener
        self._key = key
        self._name = name
        self._lock = threading.Lock()
        self._strangers: dict[socket.socket, None] = {}

    def accept(self) -> socket.socket | None:
        """The next caller, for `authenticate`; None where there is none yet or none can be taken in for the moment.

        Raises OSError once the listener is closed.
        """
        try:
            caller, _ = self._listener.accept()
        except socket.timeout:  # another class in Python 3.9
            return None
        except OSError as error:
            if error.errno in _IS_CLOSED:
                raise
            time.sleep(PAUSE_S)
            return None
        caller.settimeout(None)
        with self._lock:
            self._strangers[caller] = None
            oldest = next(iter(self._strangers)) if len(self._strangers) > STRANGERS else None
            if oldest is not None:
                del self._strangers[oldest]
        if oldest is not None:
            with suppress(OSError):
                oldest.shutdown(socket.SHUT_RDWR)  # the thread that waits for its answer closes it
        return caller

    def authenticate(self, caller: socket.socket) -> tuple[Connection, dict[str, Any]] | None:
        """The caller's connection and introduction; None for one that has no key, which is closed. At most 5 s."""
        try:
            return Connection.accept(caller, self._key)
        except (ProtocolError, PeerLost) as error:
            self.refuse(error.message)
            return None
        finally:
            with self._lock:
                self._strangers.pop(caller, None)

    def refuse(self, sentence: str) -> None:
        """Count a refusal; say it in the replica's log where none was said for a minute."""
        line = self.refusals.note(f"{self._name}: {sentence}")
        if line:
            print(f"torchyard: {line}", file=sys.stderr, flush=True)


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

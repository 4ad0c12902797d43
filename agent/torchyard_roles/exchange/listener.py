"""The listening side of connections: accepts, authenticates and counts clients.

Any process on the data network can connect. The number of connections that are not yet authenticated is limited to
UNAUTHENTICATED, so that they cannot exhaust the file descriptors. If accept() fails, it may be called again. Refused
clients are counted, and logged at most once a minute.
"""

from __future__ import annotations

import errno
import socket
import sys
import threading
import time
from contextlib import suppress
from typing import Any

from torchyard_agent.protocol.authenticated_transport import RefusedConnections
from torchyard_roles.errors import PeerLost, ProtocolError
from torchyard_roles.exchange.tensor_connection import Connection

UNAUTHENTICATED = 128
"""Maximum number of connections that are not authenticated yet. If there are more, the oldest of them is closed."""
RETRY_PAUSE_S = 0.05
"""Pause in seconds after a failed accept(), for example if there are no free file descriptors."""
_IS_CLOSED = (errno.EBADF, errno.EINVAL, errno.ENOTSOCK)


class Admission:
    """Accepts the clients of `listener`. The owner authenticates each client on a separate thread."""

    def __init__(self, listener: socket.socket, key: bytes, name: str) -> None:
        self.refusals = RefusedConnections()
        self._listener = listener
        self._key = key
        self._name = name
        self._lock = threading.Lock()
        self._unauthenticated: dict[socket.socket, None] = {}

    def accept(self) -> socket.socket | None:
        """Returns the socket of the next client, for authenticate(), or None after a timeout or a failed accept().

        Raises OSError once the listener is closed.
        """
        try:
            caller, _ = self._listener.accept()
        except socket.timeout:  # In Python 3.9, socket.timeout is not the built-in TimeoutError.
            return None
        except OSError as error:
            if error.errno in _IS_CLOSED:
                raise
            time.sleep(RETRY_PAUSE_S)
            return None
        caller.settimeout(None)
        with self._lock:
            self._unauthenticated[caller] = None
            oldest = next(iter(self._unauthenticated)) if len(self._unauthenticated) > UNAUTHENTICATED else None
            if oldest is not None:
                del self._unauthenticated[oldest]
        if oldest is not None:
            with suppress(OSError):
                oldest.shutdown(socket.SHUT_RDWR)  # The socket is closed by the thread that authenticates its client.
        return caller

    def authenticate(self, caller: socket.socket) -> tuple[Connection, dict[str, Any]] | None:
        """Returns a client's connection and introduction, or None if the client does not have the key.

        Takes at most 5 s.
        """
        try:
            return Connection.accept(caller, self._key)
        except (ProtocolError, PeerLost) as error:
            self.refuse(error.message)
            return None
        finally:
            with self._lock:
                self._unauthenticated.pop(caller, None)

    def refuse(self, message: str) -> None:
        """Counts a refused client, and logs at most one refusal per minute."""
        line = self.refusals.note(f"{self._name}: {message}")
        if line:
            print(f"torchyard: {line}", file=sys.stderr, flush=True)


class Connections:
    """The open connections of a server, with the number of bytes they transferred. All methods are thread-safe."""

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
        """Removes a closed connection. Its bytes remain in the totals of traffic()."""
        with self._lock:
            self._open.discard(connection)
            sent, received = self._past
            self._past = sent + connection.sent_bytes, received + connection.received_bytes

    def traffic(self) -> tuple[int, int]:
        """Returns the numbers of bytes sent and received so far."""
        with self._lock:
            sent, received = self._past
            for connection in self._open:
                sent, received = sent + connection.sent_bytes, received + connection.received_bytes
            return sent, received

    def close(self) -> None:
        """Shuts down all open connections. The threads that serve them then close them."""
        with self._lock:
            connections = list(self._open)
        for connection in connections:
            connection.cut()

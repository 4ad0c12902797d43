"""The listening side of connections: accepts, authenticates, counts and serves clients.

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
from abc import ABC, abstractmethod
from collections.abc import Callable
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


class ConnectionServer(ABC):
    """Serves the clients of `listener` in background threads, one per connection, from start() until close()."""

    def __init__(self, listener: socket.socket, key: bytes, name: str) -> None:
        self.name = name
        self._listener = listener
        self._admission = Admission(listener, key, name)
        self._lock = threading.Lock()
        self._connections = Connections()
        self._threads: list[threading.Thread] = []
        self._closed = False

    @abstractmethod
    def _serve(self, connection: Connection, introduction: dict[str, Any]) -> None:
        """Handles the requests of a client until it leaves.

        ProtocolError, KeyError, ValueError and TypeError mean that the client has sent an invalid message, which is
        logged. PeerLost is ignored.
        """

    def start(self) -> None:
        self._spawn(self._accept_all, "accept")

    def traffic(self) -> tuple[int, int]:
        """Returns the numbers of bytes sent and received by all connections."""
        return self._connections.traffic()

    def close(self) -> None:
        """Closes all connections and ends all threads."""
        with self._lock:
            self._closed = True
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # shutdown() wakes the thread that waits in accept().
        self._listener.close()
        self._connections.close()
        for thread in self._threads:
            thread.join(5)

    def _spawn(self, target: Callable[..., None], what: str, *arguments: Any) -> None:
        thread = threading.Thread(target=target, args=arguments, name=f"{self.name} {what}", daemon=True)
        self._threads = [each for each in self._threads if each.is_alive()]
        self._threads.append(thread)
        thread.start()

    def _accept_all(self) -> None:
        while True:
            try:
                sock = self._admission.accept()
            except OSError:
                return
            if sock is not None:
                self._spawn(self._receive_caller, "caller", sock)

    def _receive_caller(self, sock: socket.socket) -> None:
        admitted = self._admission.authenticate(sock)
        if admitted is None:
            return
        connection, introduction = admitted
        with self._lock:
            if self._closed:
                connection.close()
                return
            self._connections.add(connection)
        try:
            self._serve(connection, introduction)
        except PeerLost:
            pass
        except (ProtocolError, KeyError, ValueError, TypeError) as error:
            log(self.name, f"{connection.peer} on {connection.host} was refused: {error}")
        finally:
            connection.close()
            self._connections.remove(connection)


def log(name: str, message: str) -> None:
    """Prints a line to the replica's log."""
    print(f"{name}: {message}", file=sys.stderr, flush=True)

"""The exchange of one slice with its owner, in a thread that also notices the loss of the owner."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import closing
from typing import Any, Callable

import torch

from torchyard_roles.errors import PeerLost, ProtocolError
from torchyard_roles.exchange.tensor_connection import Connection, Peer
from torchyard_roles.strategies.diloco.slice_server import SERVICE, receive_tensors, send_tensors

CONNECT_S = 0.4
"""Timeout of a connection, which the kernel of a running host completes even if its processes are busy."""


class Calls:
    """Connections of one group to others, and their traffic."""

    def __init__(self, key: bytes, own: Peer, group: int) -> None:
        self._key = key
        self._introduction = {"name": own.name, "service": SERVICE, "group": group}
        self._lock = threading.Lock()
        self._bytes = (0, 0)

    def connect(self, peer: Peer) -> Connection:
        """Open a new connection. Raises PeerLost and ProtocolError."""
        connection, _ = Connection.connect(peer, self._key, self._introduction, CONNECT_S)
        return connection

    def count(self, connection: Connection) -> None:
        """Add the bytes of a connection that has ended."""
        with self._lock:
            sent, received = self._bytes
            self._bytes = sent + connection.sent_bytes, received + connection.received_bytes

    def traffic(self) -> tuple[int, int]:
        """Return the numbers of bytes sent and received by connections that have ended."""
        with self._lock:
            return self._bytes

    def has_begun(self, peer: Peer) -> bool | None:
        """Return whether a group has θ and m, or None if it is unreachable."""
        try:
            with closing(self.connect(peer)) as connection:
                connection.send({"op": "about"})
                return bool(connection.receive()["has_begun"])
        except (PeerLost, ProtocolError):
            return None


class SliceExchange:
    """Sends a slice of differences to its owner, receives its average, and stays connected until cancel().

    Args:
        changed: Called when the average has arrived, and when the owner is lost.
    """

    def __init__(
        self,
        calls: Calls,
        owner: Peer,
        header: dict[str, Any],
        outgoing: Sequence[torch.Tensor],
        incoming: Sequence[torch.Tensor],
        changed: Callable[[], None],
    ) -> None:
        self.owner = owner
        self.has_received = False
        self.lost: PeerLost | ProtocolError | None = None
        self._calls = calls
        self._header = header
        self._outgoing = outgoing
        self._incoming = incoming
        self._changed = changed
        self._lock = threading.Lock()
        self._connection: Connection | None = None
        self._is_cancelled = False
        self._thread = threading.Thread(target=self._run, name=f"diloco to {owner.name}", daemon=True)
        self._thread.start()

    def cancel(self) -> None:
        """Close the connection and end the thread."""
        with self._lock:
            self._is_cancelled = True
            if self._connection is not None:
                self._connection.cut()
        self._thread.join(5)

    def _run(self) -> None:
        error: PeerLost | ProtocolError | None = None
        for _ in range(2):  # A second connection distinguishes a broken connection from a lost owner.
            try:
                self._exchange_and_watch()
            except (PeerLost, ProtocolError) as found:
                error = found
            if self._is_cancelled:
                return
        self.lost = error
        self._changed()

    def _exchange_and_watch(self) -> None:
        connection = self._calls.connect(self.owner)
        try:
            with self._lock:
                if self._is_cancelled:
                    return
                self._connection = connection
            if not self.has_received:
                connection.send(self._header)
                send_tensors(connection, self._outgoing)
                header = connection.receive()
                if "abandoned" not in header:
                    receive_tensors(connection, self._incoming)
                    self.has_received = True
                    self._changed()
            connection.receive()  # The owner sends nothing, so this call ends by raising PeerLost.
        finally:
            with self._lock:
                self._connection = None
            connection.close()
            self._calls.count(connection)

"""The connections over which the first parameter server tells the others to close rounds and save checkpoints."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Callable

from torchyard_roles.errors import PeerLost, ProtocolError
from torchyard_roles.exchange.tensor_connection import Connection, Peer

SERVICE = "diloco-follower"
CONNECT_S = 10.0


class FollowerConnections:
    """Two connections to each of the other servers: one for requests, and one that detects the loss of the server.

    Args:
        on_loss: Called with the error in a separate thread if a server is lost before close() is called.
    """

    def __init__(
        self, servers: Sequence[Peer], key: bytes, name: str, on_loss: Callable[[PeerLost | ProtocolError], None]
    ) -> None:
        self._on_loss = on_loss
        self._asked: list[Connection] = []
        self._watched: list[Connection] = []
        self._threads: list[threading.Thread] = []
        self._is_closed = False
        introduction = {"name": name, "service": SERVICE}
        try:
            for server in servers:
                for connections in (self._asked, self._watched):
                    connection, _ = Connection.connect(server, key, introduction, CONNECT_S)
                    connections.append(connection)
        except (PeerLost, ProtocolError):
            self.close()
            raise
        for connection in self._watched:
            connection.send({"op": "watch"})
            thread = threading.Thread(target=self._watch, args=(connection,), name="diloco-watch", daemon=True)
            self._threads.append(thread)
            thread.start()

    def ask(self, header: dict[str, Any], meanwhile: Callable[[], None]) -> list[dict[str, Any]]:
        """Sends a request to all other servers, calls `meanwhile` while they handle it, and returns their answers.

        Raises PeerLost if a server is lost.
        """
        for connection in self._asked:
            connection.send(header)
        meanwhile()
        return [connection.receive() for connection in self._asked]

    def traffic(self) -> tuple[int, int]:
        connections = [*self._asked, *self._watched]
        return sum(each.sent_bytes for each in connections), sum(each.received_bytes for each in connections)

    def close(self) -> None:
        self._is_closed = True
        for connection in (*self._asked, *self._watched):
            connection.cut()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(5)
        for connection in (*self._asked, *self._watched):
            with suppress(OSError):
                connection.close()

    def _watch(self, connection: Connection) -> None:
        try:
            while True:
                # receive() returns only when the connection breaks, because the other server sends nothing on it.
                connection.receive()
        except (PeerLost, ProtocolError) as error:
            if not self._is_closed:
                self._on_loss(error)

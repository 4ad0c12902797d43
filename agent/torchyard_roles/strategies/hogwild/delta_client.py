"""Requests of a worker group to other groups, each over a new connection."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing, suppress
from typing import Any

import torch

from torchyard_roles.errors import PeerLost
from torchyard_roles.exchange.tensor_connection import Connection
from torchyard_roles.strategies.hogwild.delta_server import SERVICE, Holdings, numbers, receive_chunks, send_chunks
from torchyard_roles.strategies.hogwild.shard_copy import View, empty_chunks

ATTEMPT_S = 1.0
SHORT_S = 0.3
"""Timeout in seconds for connecting to a group that may be lost, if there are other groups that can be contacted."""


class Calls:
    """Connections from one worker group to others.

    Each connection sends this group's current address to the other group, and marks the other group as reachable.
    """

    def __init__(self, key: bytes, generation: int, fingerprint: str, holdings: Holdings) -> None:
        self._key = key
        self._holdings = holdings
        own = holdings.peers[holdings.group]
        self._introduction = {
            "name": own.name,
            "address": own.address,
            "port": own.port,
            "service": SERVICE,
            "group": holdings.group,
            "generation": generation,
            "fingerprint": fingerprint,
        }

    def connect(self, group: int, deadline_s: float) -> Connection:
        """Opens a new connection to a group. Raises PeerLost if the group is unreachable."""
        peer = self._holdings.peers[group]
        connection, _ = Connection.connect(peer, self._key, self._introduction, deadline_s)
        self._holdings.find(group, peer.name)
        return connection

    def ask(
        self, group: int, header: dict[str, Any], deadline_s: float = ATTEMPT_S, tensors: Sequence[torch.Tensor] = ()
    ) -> dict[str, Any]:
        """Sends a request, with one tensor per chunk if given, and returns the answer.

        Raises PeerLost if the group is unreachable.
        """
        with closing(self.connect(group, deadline_s)) as connection:
            connection.send(header)
            send_chunks(connection, tensors)
            answer = connection.receive()
            # The answer has been received, so an error while closing the connection is ignored.
            with suppress(PeerLost):
                connection.send({"op": "bye"})
            return answer

    def view(self, group: int, shard: int) -> View | None:
        """Returns a group's newest value of a shard, or None if the group has no value or is unreachable."""
        try:
            with closing(self.connect(group, ATTEMPT_S)) as connection:
                connection.send({"op": "view", "shard": shard})
                answer = connection.receive()
                if "empty" in answer:
                    return None
                tensors = empty_chunks(self._holdings.shards[shard])
                receive_chunks(connection, tensors)
                connection.send({"op": "bye"})
                return View(int(answer["version"]), numbers(answer["applied"]), tensors)
        except PeerLost:
            return None

    def rest(self, group: int, size: int) -> torch.Tensor:
        """Returns a group's frozen parameters and buffers, packed into a tensor of `size` bytes.

        Raises PeerLost if the group is unreachable.
        """
        with closing(self.connect(group, ATTEMPT_S)) as connection:
            connection.send({"op": "rest"})
            connection.receive()
            values = torch.empty(size, dtype=torch.uint8, device="cpu")
            connection.receive_into(values)
            connection.send({"op": "bye"})
            return values

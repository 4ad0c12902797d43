"""The masters of shards. A master is the sum of a shard's initial value and all deltas, each applied exactly once.

Each worker group hosts the master of its own shard for all groups. An *exchange* sends a delta, which is the change of
a group's parameters since its last exchange of the shard, and returns the master's value:

    caller                                        host of the shard
       | exchange: shard, number, base version  ---> |
       | delta, one message per chunk           ---> |  master += delta, unless the number was applied before
       | <--- version and applied numbers            |
       | <--- value, one message per chunk           |

The value is always sent together with the numbers of the exchanges that it includes. A caller that did not receive an
answer repeats the exchange with the same number, with the same host or its successor, and its delta is applied only
once. A lost master is restored from the view with the highest version. Deltas that this view does not include were not
confirmed to any running group, and are sent again.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from torchyard_roles.errors import PeerLost, ProtocolError
from torchyard_roles.exchange.listener import ConnectionServer, log
from torchyard_roles.exchange.parameter_layout import Chunk
from torchyard_roles.exchange.tensor_connection import Connection, Peer
from torchyard_roles.strategies.hogwild.shard_copy import ShardCopy, View, empty_chunks

SERVICE = "deltas"
COARSE = (torch.float16, torch.bfloat16)
"""Dtypes whose deltas are summed in float32, because rounding to these dtypes would lose small deltas."""
IN_TRANSIT = -1
"""Value in place of a shard's host while the shard's master is being transferred."""


class Master:
    """The sum of a shard's initial value and its deltas. Callers of the methods must hold `lock`."""

    def __init__(self, view: View) -> None:
        self.lock = threading.Lock()
        self.version = view.version
        self.applied = dict(view.applied)
        self.moved_to: int | None = None
        """The group that hosts the master after a transfer, or IN_TRANSIT until that group confirms."""
        self._sums = [one.to(torch.float32 if one.dtype in COARSE else one.dtype, copy=True) for one in view.values]

    def exchange(self, group: int, number: int, base: int, tensors: list[torch.Tensor]) -> int:
        """Adds the delta in `tensors`, and then copies the sum into `tensors`.

        The delta is not added again if a delta of this group with the same or a later number has been added before.

        Returns:
            The staleness, which is the number of other groups' deltas since the caller's `base` version.
        """
        staleness = max(0, self.version - base)
        if number > self.applied.get(group, -1):
            for total, delta in zip(self._sums, tensors):
                total.add_(delta)
            self.applied[group] = number
            self.version += 1
        self.read(tensors)
        return staleness

    def read(self, tensors: list[torch.Tensor]) -> None:
        for tensor, total in zip(tensors, self._sums):
            tensor.copy_(total)


class Holdings:
    """The state that a group's threads share: the groups' addresses, each shard's host, and the masters in this group.

    Args:
        peers: The addresses of the first ranks of all groups, in the order of groups.
    """

    def __init__(self, group: int, peers: Sequence[Peer], shards: list[list[Chunk]]) -> None:
        self.group = group
        self.name = peers[group].name
        self.peers = list(peers)
        self.shards = shards
        self.lineage = ""
        """The ID of the initial value to which all deltas refer. Empty until this group has started."""
        self.hosts = list(range(len(shards)))
        self.masters: dict[int, Master] = {}
        self.ended: dict[int, int] = {}
        """Groups that have ended, with the generation that ended (-1 if unknown)."""
        self.gone: dict[int, float] = {}
        """Groups that are unreachable, with the monotonic time of the loss."""
        self.changed = threading.Condition()
        """Guards `ended`, `gone`, `hosts`, `peers`, `masters` and the generations, and is notified of changes."""
        self._generations = [0] * len(peers)
        self.rest: Callable[[], torch.Tensor] | None = None
        """Returns the frozen parameters and buffers as bytes. All groups start with those of the chief."""
        self.copies: list[ShardCopy] = []
        """This group's copies of all shards. Filled before `lineage` is set."""

    def move(self, shard: int, group: int) -> None:
        with self.changed:
            self.hosts[shard] = group
            self.changed.notify_all()

    def adopt(self, shard: int, view: View) -> None:
        """Makes this group the host of a shard, unless it already hosts the same or a later version."""
        with self.changed:  # A repeated request may arrive while the first request is still in progress.
            master = self.masters.get(shard)
            if master is None or master.moved_to is not None or master.version < view.version:
                self.masters[shard] = Master(view)
            self.move(shard, self.group)

    def end(self, group: int, generation: int = -1) -> None:
        with self.changed:
            self.ended[group] = max(generation, self.ended.get(group, -1))
            self.changed.notify_all()

    def read(self, shard: int, tensors: list[torch.Tensor]) -> tuple[int, dict[int, int]] | None:
        """Copies this group's newest value of a shard into `tensors`, and returns its version and exchange numbers.

        Returns None if this group has not started.
        """
        if not self.lineage:
            return None
        master = self.masters.get(shard)
        if master is not None:
            with master.lock:
                if master.moved_to in (None, IN_TRANSIT):
                    master.read(tensors)
                    return master.version, dict(master.applied)
        return self.copies[shard].read(tensors)

    def about(self) -> dict[str, Any]:
        """Returns the state from which other groups start: the training's ID, and each shard's host and version."""
        lineage = self.lineage  # The lineage is read first. Once it is set, all copies of shards exist.
        versions = []
        for shard, copy in enumerate(self.copies):
            master = self.masters.get(shard)
            versions.append(copy.version if master is None else max(copy.version, master.version))
        with self.changed:
            ended = sorted(self.ended)
        return {"lineage": lineage, "hosts": self.hosts, "versions": versions, "ended": ended}

    def lose(self, group: int, error: PeerLost) -> None:
        """Marks a group as unreachable and logs its loss, unless it is already marked or has ended.

        If the error names a process other than the group's first rank, the call has no effect.
        """
        with self.changed:
            if group in self.gone or group in self.ended or error.name != self.peers[group].name:
                return
            self.gone[group] = time.monotonic()
        log(self.name, f"{error.message} Training continues; exchanges with worker group {group} wait for it.")

    def meet(self, group: int, peer: Peer, generation: int) -> None:
        """Stores the address of a group, which may have changed after the loss of the group's host."""
        with self.changed:
            if generation >= self._generations[group]:
                self._generations[group] = generation
                self.peers[group] = peer

    def generation(self, group: int) -> int:
        """Returns the latest known generation of a group."""
        with self.changed:
            return self._generations[group]

    def take(self, host: int, generation: int, arrive: Callable[[], None]) -> bool:
        """Calls `arrive` to apply a host's answer, unless the host has restarted since the request.

        A restarted host restores its masters from other groups' views. Deltas that it confirmed later than these views
        are lost, so the caller must send them again.

        Returns:
            Whether `arrive` was called.
        """
        with self.changed:
            if self._generations[host] != generation:
                return False
            arrive()
            return True

    def find(self, group: int, peer: str, generation: int = -1) -> None:
        """Marks a group as reachable. A group that has ended takes part again only in a later generation."""
        with self.changed:
            if generation > self.ended.get(group, generation):
                del self.ended[group]
            if group not in self.gone:
                return
            del self.gone[group]
        log(self.name, f"{peer} is back.")


class DeltaServer(ConnectionServer):
    """A server by which other groups access this group's state, with one thread per connection.

    The constructor starts the server.
    """

    def __init__(self, listener: socket.socket, key: bytes, name: str, fingerprint: str, holdings: Holdings) -> None:
        self._fingerprint = fingerprint
        self._holdings = holdings
        super().__init__(listener, key, name)
        self.start()

    def _serve(self, connection: Connection, introduction: dict[str, Any]) -> None:
        try:
            if self._admit(connection, introduction):
                self._answer_all(connection, int(introduction["group"]), int(introduction["generation"]))
        except PeerLost as error:
            if not self._closed:
                self._holdings.lose(int(introduction["group"]), error)

    def _admit(self, connection: Connection, introduction: dict[str, Any]) -> bool:
        if introduction.get("service") != SERVICE:
            connection.refuse(f"{self.name} exchanges deltas, and offers no other service.")
        elif introduction.get("fingerprint") != self._fingerprint:
            connection.refuse(
                f"The model of {connection.peer} differs from the one of {self.name}: names, shapes, dtypes, or the "
                "number of worker groups. Start all with the same script and arguments."
            )
        else:
            group, generation = int(introduction["group"]), int(introduction["generation"])
            place = Peer(connection.peer, str(introduction["address"]), int(introduction["port"]))
            if not 0 <= group < len(self._holdings.peers):
                raise ProtocolError(f"there is no worker group {group}")
            self._holdings.meet(group, place, generation)
            self._holdings.find(group, connection.peer, generation)
            connection.answer({"name": self.name})
            return True
        return False

    def _answer_all(self, connection: Connection, group: int, generation: int) -> None:
        scratch: dict[int, list[torch.Tensor]] = {}

        def tensors_of(header: dict[str, Any]) -> tuple[int, list[torch.Tensor]]:
            shard = int(header["shard"])
            if not 0 <= shard < len(self._holdings.shards):
                raise ProtocolError(f"there is no shard {shard}")
            if shard not in scratch:
                scratch[shard] = empty_chunks(self._holdings.shards[shard])
            return shard, scratch[shard]

        while True:
            header = connection.receive()
            operation = header.get("op")
            if operation == "exchange":
                self._exchange(connection, group, header, *tensors_of(header))
            elif operation == "view":
                shard, tensors = tensors_of(header)
                view = self._holdings.read(shard, tensors)
                if view is None:
                    connection.send({"empty": True})
                else:
                    send_value(connection, view[0], view[1], tensors, 0)
            elif operation == "adopt":
                shard, tensors = tensors_of(header)
                receive_chunks(connection, tensors)
                if self._holdings.lineage == header["lineage"]:
                    self._holdings.adopt(shard, View(int(header["version"]), numbers(header["applied"]), tensors))
                    connection.send({"adopted": shard})
                else:
                    # A restarted group must first recover its own state before it can host another shard.
                    connection.send({"empty": True})
            elif operation == "ended":
                # The answer is sent first, because the chief closes its connections once all groups have ended. A
                # caller that got no answer would repeat its request until its time limit.
                connection.send({})
                self._holdings.end(group, generation)
            elif operation == "rest":
                connection.send({}, self._holdings.rest() if self._holdings.rest is not None else None)
            elif operation == "about":
                connection.send(self._holdings.about())
            elif operation == "bye":
                return
            else:
                raise ProtocolError(f"{operation!r} is not an operation")

    def _exchange(
        self, connection: Connection, group: int, header: dict[str, Any], shard: int, tensors: list[torch.Tensor]
    ) -> None:
        number, base, lineage = int(header["number"]), int(header["base"]), str(header["lineage"])
        receive_chunks(connection, tensors)
        if not self._holdings.lineage:
            connection.send({"empty": True})
            return
        if lineage != self._holdings.lineage:
            connection.send({"lineage": self._holdings.lineage})
            return
        master = self._holdings.masters.get(shard)
        if master is None:
            connection.send({"moved": self._holdings.hosts[shard]})
            return
        with master.lock:
            moved_to = master.moved_to
            if moved_to is None:
                lost = base - master.version
                staleness = master.exchange(group, number, base, tensors)
                version, applied = master.version, dict(master.applied)
        if moved_to is not None:
            connection.send({"empty": True} if moved_to == IN_TRANSIT else {"moved": moved_to})
            return
        if lost > 0:
            log(self.name, f"{lost} deltas of shard {shard} are lost: {connection.peer} has seen a later version.")
        send_value(connection, version, applied, tensors, staleness)


def send_value(
    connection: Connection, version: int, applied: dict[int, int], tensors: list[torch.Tensor], staleness: int
) -> None:
    connection.send({"version": version, "applied": list(applied.items()), "staleness": staleness})
    send_chunks(connection, tensors)


def send_chunks(connection: Connection, tensors: Sequence[torch.Tensor]) -> None:
    for number, tensor in enumerate(tensors):
        connection.send({"chunk": number}, tensor)


def receive_chunks(connection: Connection, tensors: list[torch.Tensor]) -> None:
    for number, tensor in enumerate(tensors):
        header = connection.receive()
        if header.get("chunk") != number:
            raise ProtocolError(f"chunk {number} was due, not {header.get('chunk')!r}")
        connection.receive_into(tensor)


def numbers(pairs: Any) -> dict[int, int]:
    """Converts the pairs in the header's `applied` to a dict from each group to its last exchange number."""
    return {int(group): int(number) for group, number in pairs}

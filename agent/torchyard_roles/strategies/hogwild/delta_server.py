"""Hogwild's masters: the sum of a shard's start and of every delta that was sent for it, each exactly once.

A worker group hosts the master of its own shard in its own process, for all groups. An *exchange* brings a delta (what
a group's parameters have moved since its last exchange of this shard) and takes the master's value home:

    caller                                        the group that hosts the shard
       | exchange: shard, number, base version  ---> |
       | its delta, a message a chunk           ---> |  master += delta, unless that number is in already
       | <--- master: version, numbers that are in   |
       | <--- its value, a message a chunk           |

A master's value always travels with the numbers of the exchanges that are in it. So a caller whose answer was lost asks
again with the same number, of the same host, of one that was started again, or of another that has taken over, and
its delta counts once. Whoever has seen the highest version of a master can be its seed: what is missing from it was
confirmed to nobody alive, and will be sent again.
"""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import torch

from torchyard_roles.errors import PeerLost, ProtocolError
from torchyard_roles.exchange.listener import Admission, Connections
from torchyard_roles.exchange.parameter_layout import Chunk, dtype_named
from torchyard_roles.exchange.tensor_connection import Connection, Peer

SERVICE = "deltas"
COARSE = (torch.float16, torch.bfloat16)
"""Summed in float32: many small deltas would be rounded away."""


IN_TRANSIT = -1
"""In place of the group that hosts a master now: it is on its way there."""


class View(NamedTuple):
    """What somebody knows of a master: its value at a version, and the last exchange of each group that is in it."""

    version: int
    applied: dict[int, int]
    values: list[torch.Tensor]
    """One flat tensor a chunk."""


def empty_chunks(chunks: list[Chunk]) -> list[torch.Tensor]:
    """Flat tensors on the CPU, one a chunk."""
    return [torch.empty(chunk.elements, dtype=dtype_named(chunk.dtype)) for chunk in chunks]


class Master:
    """One shard's sum. Its methods are called with `lock` held."""

    def __init__(self, view: View) -> None:
        self.lock = threading.Lock()
        self.version = view.version
        self.applied = dict(view.applied)
        self.moved_to: int | None = None
        """The group that hosts it now, once it was handed over; IN_TRANSIT until that group has confirmed."""
        self._sums = [
            value.to(torch.float32 if value.dtype in COARSE else value.dtype, copy=True) for value in view.values
        ]

    def exchange(self, group: int, number: int, base: int, tensors: list[torch.Tensor]) -> int:
        """Add a delta, and put the sum in its place; an exchange that is in already adds nothing.

        Returns its staleness: the deltas of others that have come in since the caller's `base` version.
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


class Copy(Protocol):
    """What a group's own copy of a shard tells the others (`strategies.hogwild_copy.ShardCopy`)."""

    version: int

    def read(self, tensors: list[torch.Tensor]) -> tuple[int, dict[int, int]]: ...


class Holdings:
    """What a group knows of the others, shared by its threads: where each is, who hosts which shard, and the masters
    that it hosts itself. `peers`: the first rank of each group, in order of groups."""

    def __init__(self, group: int, peers: Sequence[Peer], shards: list[list[Chunk]]) -> None:
        self.group = group
        self.name = peers[group].name
        self.peers = list(peers)
        self.shards = shards
        self.lineage = ""
        """Names the start that all deltas are added to; empty until this group has one."""
        self.hosts = list(range(len(shards)))
        self.masters: dict[int, Master] = {}
        self.ended: dict[int, int] = {}
        """Groups that have ended, and the generation that has said so (-1 where nobody knows)."""
        self.gone: dict[int, float] = {}
        """Groups whose connection has broken, and that have not been heard since: when that was, by monotonic clock."""
        self.changed = threading.Condition()
        """Guards `ended`, `gone`, `hosts`, `peers`, each group's generation, and which masters there are; notified when
        one of them changes."""
        self._generations = [0] * len(peers)
        self.rest: Callable[[], torch.Tensor] | None = None
        """What is not exchanged, as bytes: frozen parameters and buffers. All begin with the chief's."""
        self.copies: list[Copy] = []
        """This group's own copies, a shard each; filled before `lineage` is set."""

    def move(self, shard: int, group: int) -> None:
        with self.changed:
            self.hosts[shard] = group
            self.changed.notify_all()

    def adopt(self, shard: int, view: View) -> None:
        """Host a shard from here on. What is already hosted, at the same version or a later one, stays as it is."""
        with self.changed:  # who was not answered asks again, while the first call may be in here yet
            master = self.masters.get(shard)
            if master is None or master.moved_to is not None or master.version < view.version:
                self.masters[shard] = Master(view)
            self.move(shard, self.group)

    def end(self, group: int, generation: int = -1) -> None:
        with self.changed:
            self.ended[group] = max(generation, self.ended.get(group, -1))
            self.changed.notify_all()

    def read(self, shard: int, tensors: list[torch.Tensor]) -> tuple[int, dict[int, int]] | None:
        """The newest that this group has of a shard, into `tensors`; None before it has any."""
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
        """What others start from: the lineage, who hosts which, and the version of each shard known here."""
        lineage = self.lineage  # first: with a lineage all copies are there
        versions = []
        for shard, copy in enumerate(self.copies):
            master = self.masters.get(shard)
            versions.append(copy.version if master is None else max(copy.version, master.version))
        with self.changed:
            ended = sorted(self.ended)
        return {"lineage": lineage, "hosts": self.hosts, "versions": versions, "ended": ended}

    def lose(self, group: int, error: PeerLost) -> None:
        """Say once that a group is gone. One that is somewhere else by now is not, whatever its old place says."""
        with self.changed:
            if group in self.gone or group in self.ended or error.name != self.peers[group].name:
                return
            self.gone[group] = time.monotonic()
        say(self.name, f"{error.message} Training goes on; what is due to worker group {group} waits for it.")

    def meet(self, group: int, peer: Peer, generation: int) -> None:
        """It has said where it is. After the loss of its first host that is another place than it began at."""
        with self.changed:
            if generation >= self._generations[group]:
                self._generations[group] = generation
                self.peers[group] = peer

    def generation(self, group: int) -> int:
        """Of the group's latest start, as far as is known here."""
        with self.changed:
            return self._generations[group]

    def take(self, host: int, generation: int, arrive: Callable[[], None]) -> bool:
        """Call `arrive` with the answer of a host, unless that was of an earlier start than its latest.

        A host that is started again begins its masters with what it is told here, then and later by others. What this
        group only learns afterwards of the masters of before is in none of them: its delta has to be sent again.
        """
        with self.changed:
            if self._generations[host] != generation:
                return False
            arrive()
            return True

    def find(self, group: int, peer: str, generation: int = -1) -> None:
        """It is heard again. One that had ended takes part again only as a later generation: its last words overlap."""
        with self.changed:
            if generation > self.ended.get(group, generation):
                del self.ended[group]
            if group not in self.gone:
                return
            del self.gone[group]
        say(self.name, f"{peer} is back.")


class DeltaServer:
    """Serves what a group holds to the other groups: a thread a caller. Started by its constructor."""

    def __init__(self, listener: socket.socket, key: bytes, name: str, fingerprint: str, holdings: Holdings) -> None:
        self._listener = listener
        self._admission = Admission(listener, key, name)
        self._name = name
        self._fingerprint = fingerprint
        self._holdings = holdings
        self._lock = threading.Lock()
        self._connections = Connections()
        self._threads: list[threading.Thread] = []
        self._closed = False
        self._spawn(self._accept_all, "deltas")

    def traffic(self) -> tuple[int, int]:
        """Bytes sent and received so far, by all connections."""
        return self._connections.traffic()

    def close(self) -> None:
        """Part from all callers; returns when no thread of it is left."""
        with self._lock:
            self._closed = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes accept() up
        self._listener.close()
        self._connections.close()
        for thread in self._threads:
            thread.join(5)

    def _spawn(self, target: Callable[..., None], name: str, *arguments: Any) -> None:
        thread = threading.Thread(target=target, args=arguments, name=name, daemon=True)
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
                self._spawn(self._serve, "deltas-caller", sock)

    def _serve(self, sock: socket.socket) -> None:
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
            if self._admit(connection, introduction):
                self._answer_all(connection, int(introduction["group"]), int(introduction["generation"]))
        except PeerLost as error:
            if not self._closed:
                self._holdings.lose(int(introduction["group"]), error)
        except (ProtocolError, KeyError, ValueError, TypeError) as error:
            say(self._name, f"{connection.peer} on {connection.host} was sent away: {error}")
        finally:
            connection.close()
            self._connections.remove(connection)

    def _admit(self, connection: Connection, introduction: dict[str, Any]) -> bool:
        if introduction.get("service") != SERVICE:
            connection.refuse(f"{self._name} exchanges deltas, and nothing else.")
        elif introduction.get("fingerprint") != self._fingerprint:
            connection.refuse(
                f"The model of {connection.peer} differs from the one of {self._name}: names, shapes, dtypes, or the "
                "number of worker groups. Start all with the same script and arguments."
            )
        else:
            group, generation = int(introduction["group"]), int(introduction["generation"])
            place = Peer(connection.peer, str(introduction["address"]), int(introduction["port"]))
            if not 0 <= group < len(self._holdings.peers):
                raise ProtocolError(f"there is no worker group {group}")
            self._holdings.meet(group, place, generation)
            self._holdings.find(group, connection.peer, generation)
            connection.answer({"name": self._name})
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
            what = header.get("op")
            if what == "exchange":
                self._exchange(connection, group, header, *tensors_of(header))
            elif what == "view":
                shard, tensors = tensors_of(header)
                view = self._holdings.read(shard, tensors)
                if view is None:
                    connection.send({"empty": True})
                else:
                    send_value(connection, view[0], view[1], tensors, 0)
            elif what == "adopt":
                shard, tensors = tensors_of(header)
                receive_chunks(connection, tensors)
                if self._holdings.lineage == header["lineage"]:
                    self._holdings.adopt(shard, View(int(header["version"]), numbers(header["applied"]), tensors))
                    connection.send({"adopted": shard})
                else:
                    connection.send({"empty": True})  # started again a moment ago: it has to look around first
            elif what == "ended":
                self._holdings.end(group, generation)
                connection.send({})
            elif what == "rest":
                connection.send({}, self._holdings.rest() if self._holdings.rest is not None else None)
            elif what == "about":
                connection.send(self._holdings.about())
            elif what == "bye":
                return
            else:
                raise ProtocolError(f"{what!r} is nothing that can be asked for")

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
            say(self._name, f"{lost} deltas of shard {shard} are lost: {connection.peer} has seen a later version.")
        send_value(connection, version, applied, tensors, staleness)


def send_value(
    connection: Connection, version: int, applied: dict[int, int], tensors: list[torch.Tensor], staleness: int
) -> None:
    connection.send({"version": version, "applied": list(applied.items()), "staleness": staleness})
    send_chunks(connection, tensors)


def send_chunks(connection: Connection, tensors: list[torch.Tensor]) -> None:
    for number, tensor in enumerate(tensors):
        connection.send({"chunk": number}, tensor)


def receive_chunks(connection: Connection, tensors: list[torch.Tensor]) -> None:
    for number, tensor in enumerate(tensors):
        header = connection.receive()
        if header.get("chunk") != number:
            raise ProtocolError(f"chunk {number} was due, not {header.get('chunk')!r}")
        connection.receive_into(tensor)


def numbers(pairs: Any) -> dict[int, int]:
    """The `applied` of a header."""
    return {int(group): int(number) for group, number in pairs}


def say(name: str, sentence: str) -> None:
    """A line in the replica's log."""
    print(f"{name}: {sentence}", file=sys.stderr, flush=True)

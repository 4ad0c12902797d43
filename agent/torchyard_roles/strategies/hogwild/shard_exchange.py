"""Exchanges one shard in a background thread. Training continues even if the shard's host is unreachable."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import Protocol

import torch

from torchyard_roles.errors import PeerLost, ProtocolError, RolesError
from torchyard_roles.exchange.tensor_connection import Connection
from torchyard_roles.strategies.hogwild.delta_client import ATTEMPT_S, SHORT_S, Calls
from torchyard_roles.strategies.hogwild.delta_server import Holdings, Master, numbers, receive_chunks, send_chunks
from torchyard_roles.strategies.hogwild.shard_copy import ShardCopy

CHIEF = 0
"""The number of the group that provides all groups' initial parameters, takes over their shards, and ends last."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 1.0


class ExchangingGroup(Protocol):
    """The interface of a worker group that its ShardExchange threads use."""

    group: int
    holdings: Holdings
    calls: Calls
    host_wait_s: float

    def fail(self, error: RolesError) -> None: ...

    def adopt_orphan(self, shard: int) -> None: ...


class ShardExchange(threading.Thread):
    """A thread that exchanges one shard with the group that hosts it, which may be this group."""

    def __init__(self, group: ExchangingGroup, copy: ShardCopy) -> None:
        super().__init__(name=f"hogwild-shard-{copy.number}", daemon=True)
        self._group = group
        self._copy = copy
        self._connection: Connection | None = None
        self._host = -1
        self._generation = 0
        """The generation that the master's host had when the connection was made."""
        self._closing = threading.Event()
        self._past_bytes = (0, 0)

    def traffic(self) -> tuple[int, int]:
        sent, received = self._past_bytes
        connection = self._connection
        if connection is None:
            return sent, received
        return sent + connection.sent_bytes, received + connection.received_bytes

    def run(self) -> None:
        copy = self._copy
        while not self._closing.is_set():
            with copy.changed:
                copy.changed.wait_for(lambda: copy.under_way or self._closing.is_set())
            try:
                self._exchange()
            except RolesError as error:
                self._group.fail(error)
                copy.fail()
                return

    def close(self) -> None:
        self._closing.set()
        with self._copy.changed:
            self._copy.changed.notify_all()
        if self.ident is None:
            return
        connection = self._connection
        if self._copy.under_way and connection is not None:
            connection.cut()  # cut() wakes the thread if the thread is waiting for the connection.
        self.join(5)
        if self._connection is not None:
            with suppress(PeerLost):
                self._connection.send({"op": "bye"})
            self._drop()

    def _exchange(self) -> None:
        """Attempts the exchange until it succeeds. Meanwhile, the shard's host may be lost, return, or be replaced."""
        pause, away_since = FIRST_PAUSE_S, 0.0
        while self._copy.under_way and not self._closing.is_set():
            try:
                if self._attempt():
                    return
            except PeerLost as error:
                self._drop()
                if self._closing.is_set() or self._has_moved():
                    continue
                self._group.holdings.lose(self._host, error)
                away_since = away_since or time.monotonic()
                if self._group.group == CHIEF and time.monotonic() - away_since > self._group.host_wait_s:
                    self._group.adopt_orphan(self._copy.number)
                    continue
            self._closing.wait(pause)
            pause = min(2 * pause, LONGEST_PAUSE_S)

    def _attempt(self) -> bool:
        """Attempts the exchange once, and returns whether it is done.

        Raises:
            PeerLost: The host is unreachable. The exchange may be attempted again.
            ProtocolError: The exchange can never succeed.
        """
        copy, holdings = self._copy, self._group.holdings
        host = holdings.hosts[copy.number]
        if host == holdings.group:
            return self._exchange_locally(holdings.masters[copy.number])
        connection = self._connection  # Another thread may clear this attribute in close().
        if connection is None or self._host != host:
            self._drop()
            self._host, self._generation = host, holdings.generation(host)
            connection = self._connection = self._group.calls.connect(host, ATTEMPT_S)
            if self._closing.is_set():  # close() was called while this thread connected.
                self._drop()
                return False
        header = {"op": "exchange", "shard": copy.number, "number": copy.exchanges, "base": copy.version}
        connection.send({**header, "lineage": holdings.lineage})
        tensors = self._delta()
        send_chunks(connection, tensors)
        answer = connection.receive()
        if "moved" in answer:
            holdings.move(copy.number, int(answer["moved"]))
            return False
        if "empty" in answer:
            return False
        if "lineage" in answer:
            raise ProtocolError(
                "The other worker groups have restarted from a checkpoint while this group was disconnected.",
                "Restart this group: it then continues with them.",
            )
        receive_chunks(connection, tensors)
        version, applied, staleness = int(answer["version"]), numbers(answer["applied"]), int(answer["staleness"])
        if not holdings.take(host, self._generation, lambda: copy.arrive(version, applied, staleness)):
            self._drop()
            return False
        return True

    def _exchange_locally(self, master: Master) -> bool:
        copy = self._copy
        tensors = self._delta()
        with master.lock:
            if master.moved_to is not None:
                return False
            staleness = master.exchange(self._group.group, copy.exchanges, copy.version, tensors)
            version, applied = master.version, dict(master.applied)
        copy.arrive(version, applied, staleness)
        return True

    def _delta(self) -> list[torch.Tensor]:
        tensors = self._copy.delta()
        if not all(bool(torch.isfinite(tensor).all()) for tensor in tensors):
            raise RolesError(
                f"The parameters of worker group {self._group.group} are no longer finite; nothing was sent.",
                "Lower the learning rate or clip the gradients; strategy.on_nan: skip leaves out single bad gradients.",
            )
        return tensors

    def _has_moved(self) -> bool:
        """Returns whether another group hosts the shard now. Groups other than the chief's ask the chief's group."""
        group, shard = self._group, self._copy.number
        if group.group != CHIEF and self._host != CHIEF:
            try:
                host = int(group.calls.ask(CHIEF, {"op": "about"}, SHORT_S)["hosts"][shard])
                if host == CHIEF:
                    group.holdings.move(shard, host)
            except PeerLost:
                return False
        return group.holdings.hosts[shard] != self._host

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
            sent, received = self._past_bytes
            self._past_bytes = sent + connection.sent_bytes, received + connection.received_bytes

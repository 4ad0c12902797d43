"""One worker group among the others: its start, its exchanges under way, and its parting.

Everything that a group does to the others goes through its first rank, in here. Nothing in here knows
torch.distributed: the ranks of a group share what arrives in `hogwild`.

A group's life:

    start     the chief's group begins with its model; the others fetch the chief's. A group that was started again
              fetches what the others have, and hosts its shard again from the newest view that anybody has.
    boundary  between two steps: begins and applies exchanges; never waits.
    drain     a last exchange of every shard. Then a group hands its shard to the chief's and ends, at once: nobody
              waits for slower groups but the chief's, which ends last and then holds the sum of everything.
"""

from __future__ import annotations

import hashlib
import os
import socket
import threading
import time
from contextlib import suppress
from typing import Any

import torch

from torchyard_roles.errors import PeerLost, RolesError
from torchyard_roles.exchange.chunk_staging import PackedTensors
from torchyard_roles.exchange.parameter_layout import Chunk
from torchyard_roles.exchange.tensor_connection import Peer
from torchyard_roles.strategies.hogwild.delta_client import SHORT_S, Calls
from torchyard_roles.strategies.hogwild.delta_server import (
    IN_TRANSIT,
    DeltaServer,
    Holdings,
    Master,
    View,
    empty_chunks,
    say,
)
from torchyard_roles.strategies.hogwild.shard_copy import ShardCopy
from torchyard_roles.strategies.hogwild.shard_exchange import CHIEF, FIRST_PAUSE_S, ShardExchange

HOST_WAIT_S = 600.0
"""How long a group that is gone is waited for where nothing can go on without it, as keepers wait for its host."""
RECOVER_S = 12.0
"""How long a group that was started again looks for the others: who is there, answers sooner."""
PROBE_EVERY_S = 1.0
SAY_WAITING_S = 10.0


class WorkerGroup:
    """`peers`: the first rank of each group, in order of groups, this one's included; `listener` is at its address.
    `model` is the layout's fingerprint and `shards` are its chunks, a list a group; `rest` is what is not exchanged."""

    def __init__(
        self,
        group: int,
        peers: list[Peer],
        listener: socket.socket,
        key: bytes,
        model: str,
        shards: list[list[Chunk]],
        parameters: list[torch.nn.Parameter],
        *,
        rest: PackedTensors | None = None,
        sync_every: int = 8,
        generation: int = 0,
        ended: dict[int, int] | None = None,
        host_wait_s: float = HOST_WAIT_S,
        recover_s: float = RECOVER_S,
    ) -> None:
        self.group = group
        self.name = peers[group].name
        self.generation = generation
        self.host_wait_s = host_wait_s
        self._recover_s = recover_s
        self._sync_every = sync_every
        self._rest = rest if rest is not None and rest.bytes else None
        size = self._rest.bytes if self._rest is not None else 0
        fingerprint = hashlib.sha256(f"{len(peers)} {size} {model}".encode()).hexdigest()
        self.holdings = Holdings(group, peers, shards)
        self.holdings.ended.update(ended or {})
        self.holdings.rest = self._rest.packed if self._rest is not None else None
        self.calls = Calls(key, generation, fingerprint, self.holdings)
        self.copies = [ShardCopy(shard, chunks, parameters, generation) for shard, chunks in enumerate(shards)]
        self._exchanges = [ShardExchange(self, copy) for copy in self.copies]
        self._error: RolesError | None = None
        self._server = DeltaServer(listener, key, self.name, fingerprint, self.holdings)

    @property
    def peers(self) -> list[Peer]:
        """The first rank of each group, as far as is known now."""
        return self.holdings.peers

    # starting

    def start(self) -> None:
        """Have the parameters that all have, or those of the others' present. Raises RolesError where they cannot come.

        The first group begins with the parameters as they are, unless it was started again and others have gone on.
        """
        if self.group != CHIEF:
            about = self._ask_the_chief()
            for group in set(about["ended"]) - {self.group}:
                self.holdings.end(int(group))
            others = self._look_around() if self.generation else {CHIEF: about}
            self._take_part(str(about["lineage"]), [int(host) for host in about["hosts"]], others)
        elif self.generation and (others := self._look_around()):
            for about in others.values():
                for shard, host in enumerate(about["hosts"]):
                    if host == CHIEF and shard != CHIEF:
                        self.holdings.end(shard)  # it has handed over its shard
            hosts = [CHIEF if shard in self.holdings.ended else shard for shard in range(len(self.peers))]
            self._take_part(next(str(about["lineage"]) for about in others.values()), hosts, others)
        else:
            self._begin()
        for exchange in self._exchanges:
            exchange.start()

    def _begin(self) -> None:
        for shard, copy in enumerate(self.copies):
            copy.load(copy.value())
            if shard == self.group or shard in self.holdings.ended:
                self.holdings.adopt(shard, copy.value())
        self._publish(os.urandom(8).hex())

    def _publish(self, lineage: str) -> None:
        self.holdings.copies.extend(self.copies)
        self.holdings.lineage = lineage

    def _ask_the_chief(self) -> dict[str, Any]:
        """Who hosts which, from the chief's group: once it has begun, or has found its way back. And begin with its
        frozen parameters and buffers."""
        began, said = time.monotonic(), False
        while True:
            why = "it has not yet called distribute() and begun to train"
            try:
                about = self.calls.ask(CHIEF, {"op": "about"})
                if about["lineage"]:
                    if self._rest is not None:
                        self._rest.unpack(self.calls.rest(CHIEF, self._rest.bytes))
                    return about
            except PeerLost as error:
                why = error.why
            waited_s = time.monotonic() - began
            if waited_s > self.host_wait_s:
                raise PeerLost(self.peers[CHIEF].name, self.peers[CHIEF].address, why)
            if waited_s > SAY_WAITING_S and not said:
                say(self.name, f"waiting for {self.peers[CHIEF].name}, which all start from: {why}.")
                said = True
            time.sleep(0.1)

    def _look_around(self) -> dict[int, dict[str, Any]]:
        """What the other groups say of themselves, of those that have something to go on with."""
        missing = set(range(len(self.peers))) - {self.group} - set(self.holdings.ended)
        answers: dict[int, dict[str, Any]] = {}
        deadline = time.monotonic() + self._recover_s
        while missing and time.monotonic() < deadline:
            for group in sorted(missing):
                try:
                    about = self.calls.ask(group, {"op": "about"}, SHORT_S)
                except PeerLost:
                    continue
                missing.remove(group)
                if about["lineage"]:
                    answers[group] = about
            if missing:
                time.sleep(FIRST_PAUSE_S)
        for group in missing:
            say(
                self.name, f"{self.peers[group].name} does not answer: what it alone knew is not waited for any longer."
            )
        if not answers and self.group == CHIEF:
            say(self.name, "no other worker group has anything newer: all begin from this one's parameters.")
        return answers

    def _take_part(self, lineage: str, hosts: list[int], others: dict[int, dict[str, Any]]) -> None:
        for shard, host in enumerate(hosts):
            self.holdings.move(shard, host)
            if host == self.group:
                view = self._freshest(shard, others)
                self.holdings.masters[shard] = Master(view)
            else:
                view = self.calls.view(host, shard) or self._freshest(shard, others)
            self.copies[shard].load(view)
        self._publish(lineage)

    def _freshest(self, shard: int, others: dict[int, dict[str, Any]]) -> View:
        """The newest view of a shard that any of the others has."""
        for group in sorted(others, key=lambda group: int(others[group]["versions"][shard]), reverse=True):
            view = self.calls.view(group, shard)
            if view is not None:
                return view
        raise RolesError(f"No worker group has shard {shard}: those that had it are gone.", "Start the run again.")

    # in the midst of it

    def boundary(self, updates: int = 1) -> list[int]:
        """Between two steps, `updates` after the last call: the shards whose parameters were brought up to date."""
        self.check()
        arrived = []
        for copy in self.copies:
            copy.updates += updates
            has_arrived, is_idle = copy.look()
            if has_arrived:
                copy.apply()
                arrived.append(copy.number)
            if is_idle and copy.updates >= self._sync_every:
                copy.begin()
        return arrived

    @property
    def staleness(self) -> int:
        """The most deltas of others that came in between two exchanges of a shard of this group's."""
        return max(copy.staleness for copy in self.copies)

    def traffic(self) -> tuple[int, int]:
        """Bytes sent and received so far, but for what starting took from others."""
        sent, received = self._server.traffic()
        for exchange in self._exchanges:
            sent, received = sent + exchange.traffic()[0], received + exchange.traffic()[1]
        return sent, received

    def fail(self, error: RolesError) -> None:
        """From a link: training cannot go on; said at the next boundary."""
        self._error = self._error or error

    def check(self) -> None:
        """Raises what fail() was told."""
        if self._error is not None:
            raise self._error

    def adopt_orphan(self, shard: int) -> None:
        """Host a shard whose group does not come back: the chief's group does so for all."""
        say(self.name, f"{self.peers[shard].name} did not come back: this group hosts its shard from here on.")
        own = self.copies[shard]
        tensors = empty_chunks(self.holdings.shards[shard])
        version, applied = own.read(tensors)
        best = View(version, applied, tensors)
        for group in range(len(self.peers)):
            if group in (self.group, shard) or group in self.holdings.ended.keys() | self.holdings.gone.keys():
                continue
            view = self.calls.view(group, shard)
            if view is not None and view.version > best.version:
                best = view
        self.holdings.adopt(shard, best)

    # parting

    def exchange_within(self, limit_s: float) -> None:
        """As `exchange_all`, but for what has not come back by then: that goes on by itself. Raises RolesError where it
        never will."""
        deadline = time.monotonic() + limit_s
        self.check()
        for copy in self.copies:
            has_arrived, is_idle = copy.look()
            if has_arrived:
                copy.apply()
            if is_idle:
                copy.begin()
        for copy in self.copies:
            if copy.wait(max(0.0, deadline - time.monotonic())):
                copy.apply()
        self.check()

    def drain(self) -> None:
        """The last exchanges. Returns when this group may end; the chief's, when its parameters are the sum of all."""
        self.exchange_all()
        if self.group != CHIEF:
            self._hand_over()
            return
        self._wait_for_the_others()
        self.exchange_all()

    def stop(self, limit_s: float) -> None:
        """Part at once, as all do: what can be exchanged and handed over within `limit_s` is."""
        thread = threading.Thread(target=self._drain_quietly, name="hogwild-stop", daemon=True)
        thread.start()
        thread.join(limit_s)

    def _drain_quietly(self) -> None:
        with suppress(RolesError):  # others stop too, and may be gone first
            self.drain()

    def close(self) -> None:
        """End all threads and connections."""
        for exchange in self._exchanges:
            exchange.close()
        self._server.close()

    def exchange_all(self) -> None:
        """One exchange of every shard, with all local updates so far; returns when they are done."""
        for copy in self.copies:
            self._wait(copy)
            if copy.has_arrived:
                copy.apply()
            copy.begin()
        for copy in self.copies:
            self._wait(copy)
            copy.apply()

    def _wait(self, copy: ShardCopy) -> None:
        deadline = time.monotonic() + self.host_wait_s + 2 * self._recover_s
        while not copy.wait(PROBE_EVERY_S):
            self.check()
            if time.monotonic() > deadline:
                host = self.peers[self.holdings.hosts[copy.number]]
                raise PeerLost(host.name, host.address, "its worker group did not come back")
        self.check()

    def _hand_over(self) -> None:
        for shard, master in self.holdings.masters.items():
            tensors = empty_chunks(self.holdings.shards[shard])
            with master.lock:
                if master.moved_to is not None:
                    continue
                # From here on it takes no more deltas: the callers ask again, until they hear where it is.
                master.moved_to = IN_TRANSIT
                master.read(tensors)
            header = {"op": "adopt", "shard": shard, "version": master.version, "lineage": self.holdings.lineage}
            self._tell_the_chief({**header, "applied": list(master.applied.items())}, tensors)
            master.moved_to = CHIEF
            self.holdings.move(shard, CHIEF)
        self._tell_the_chief({"op": "ended"}, [])

    def _tell_the_chief(self, header: dict[str, Any], tensors: list[torch.Tensor]) -> None:
        deadline = time.monotonic() + self.host_wait_s
        while True:
            try:
                if "empty" not in self.calls.tell(CHIEF, header, tensors):
                    return
            except PeerLost as error:
                self.holdings.lose(CHIEF, error)
                if time.monotonic() > deadline:
                    raise
            time.sleep(FIRST_PAUSE_S)

    def _wait_for_the_others(self) -> None:
        """Until every other group has ended, or was away for `host_wait_s`."""
        holdings = self.holdings
        now, gone = time.monotonic(), dict(holdings.gone)
        heard = {group: gone.get(group, now) for group in range(len(self.peers)) if group != self.group}
        while True:
            with holdings.changed:
                holdings.changed.wait_for(lambda: holdings.ended.keys() >= heard.keys(), PROBE_EVERY_S)
                waiting = sorted(heard.keys() - holdings.ended.keys())
            if not waiting:
                return
            self.check()
            for group in waiting:
                try:
                    self.calls.ask(group, {"op": "about"}, SHORT_S)
                    heard[group] = time.monotonic()
                except PeerLost as error:
                    holdings.lose(group, error)
                if time.monotonic() - heard[group] > self.host_wait_s and group not in holdings.ended:
                    if holdings.hosts[group] == group:
                        self.adopt_orphan(group)
                    holdings.end(group)

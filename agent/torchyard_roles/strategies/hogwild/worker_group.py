"""The exchanges of one worker group with the other groups, made by its first rank.

This module does not use torch.distributed. `strategy` distributes received values to the other ranks of the group.

    start     the chief's group begins with its model, and the other groups fetch the model's values. A restarted group
              fetches the values of the other groups, and restores its master from their newest view.
    boundary  between two steps: begins and applies exchanges without waiting.
    drain     a last exchange of every shard. A group then transfers its master to the chief's group and ends. Only the
              chief's group waits for slower groups; it ends last and then has the sum of all deltas.
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
from torchyard_roles.exchange.listener import log
from torchyard_roles.exchange.parameter_layout import Chunk
from torchyard_roles.exchange.tensor_connection import Peer
from torchyard_roles.strategies.hogwild.delta_client import SHORT_S, Calls
from torchyard_roles.strategies.hogwild.delta_server import IN_TRANSIT, DeltaServer, Holdings, Master
from torchyard_roles.strategies.hogwild.shard_copy import ShardCopy, View, empty_chunks
from torchyard_roles.strategies.hogwild.shard_exchange import CHIEF, FIRST_PAUSE_S, ShardExchange

HOST_WAIT_S = 600.0
"""Longest time in seconds to wait for a lost group that is needed. Keepers wait equally long for the group's host."""
RECOVER_S = 12.0
"""Longest time in seconds for which a restarted group tries to reach the other groups. Running groups answer sooner."""
PROBE_EVERY_S = 1.0
SAY_WAITING_S = 10.0


class WorkerGroup:
    """The exchanges of the first rank of a worker group.

    Args:
        group: The number of this group.
        peers: The address of each group's first rank, including this group's.
        listener: A socket that listens at the address of this group.
        model: The fingerprint of the model's parameter layout.
        shards: The chunks of each group's shard.
        rest: Frozen parameters and buffers, which are not exchanged after the start.
    """

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
        """The last known address of each group's first rank."""
        return self.holdings.peers

    def start(self) -> None:
        """Loads the parameters that all groups share. Raises RolesError if they cannot be fetched.

        The chief's group keeps its parameters, unless it was restarted and other groups have newer parameters.
        """
        if self.group != CHIEF:
            about = self._ask_chief()
            for group in set(about["ended"]) - {self.group}:
                self.holdings.end(int(group))
            others = self._ask_other_groups() if self.generation else {CHIEF: about}
            self._enter(str(about["lineage"]), [int(host) for host in about["hosts"]], others)
        elif self.generation and (others := self._ask_other_groups()):
            for about in others.values():
                for shard, host in enumerate(about["hosts"]):
                    if host == CHIEF and shard != CHIEF:
                        self.holdings.end(shard)  # The group ended and transferred its master to the chief's group.
            hosts = [CHIEF if shard in self.holdings.ended else shard for shard in range(len(self.peers))]
            self._enter(next(str(about["lineage"]) for about in others.values()), hosts, others)
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

    def _ask_chief(self) -> dict[str, Any]:
        """Returns the state of the chief's group once it has started or recovered.

        This method also loads the chief's frozen parameters and buffers.
        """
        began, is_logged = time.monotonic(), False
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
            if waited_s > SAY_WAITING_S and not is_logged:
                log(self.name, f"waiting for {self.peers[CHIEF].name}, which all start from: {why}.")
                is_logged = True
            time.sleep(0.1)

    def _ask_other_groups(self) -> dict[int, dict[str, Any]]:
        """Returns, by group, the state of each other group that has started and answers within `recover_s`."""
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
            log(self.name, f"{self.peers[group].name} does not answer; updates that only it has are not awaited.")
        if not answers and self.group == CHIEF:
            log(self.name, "no other worker group has newer parameters; all start from those of this group.")
        return answers

    def _enter(self, lineage: str, hosts: list[int], others: dict[int, dict[str, Any]]) -> None:
        for shard, host in enumerate(hosts):
            self.holdings.move(shard, host)
            if host == self.group:
                view = self._newest_view(shard, others)
                self.holdings.masters[shard] = Master(view)
            else:
                view = self.calls.view(host, shard) or self._newest_view(shard, others)
            self.copies[shard].load(view)
        self._publish(lineage)

    def _newest_view(self, shard: int, others: dict[int, dict[str, Any]]) -> View:
        """Returns the newest value of a shard that any other group has."""
        for group in sorted(others, key=lambda group: int(others[group]["versions"][shard]), reverse=True):
            view = self.calls.view(group, shard)
            if view is not None:
                return view
        raise RolesError(f"No worker group has shard {shard}: the groups that had it are gone.", "Start the run again.")

    def boundary(self, updates: int = 1) -> list[int]:
        """Applies complete exchanges and begins new ones, without waiting. Returns the numbers of updated shards.

        `updates` is the number of steps since the last call.
        """
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
        """The staleness of the last exchange, as the maximum over all shards.

        The staleness of an exchange is the number of other groups' deltas since the previous exchange of the shard.
        """
        return max(copy.staleness for copy in self.copies)

    def traffic(self) -> tuple[int, int]:
        """Returns the numbers of bytes sent and received by exchanges and the server since the start."""
        sent, received = self._server.traffic()
        for exchange in self._exchanges:
            sent, received = sent + exchange.traffic()[0], received + exchange.traffic()[1]
        return sent, received

    def fail(self, error: RolesError) -> None:
        """Records the error of an exchange that cannot continue. check() raises it."""
        self._error = self._error or error

    def check(self) -> None:
        """Raises the error that fail() recorded, if any."""
        if self._error is not None:
            raise self._error

    def adopt_orphan(self, shard: int) -> None:
        """Makes this group the host of a lost group's shard. Called only in the chief's group."""
        log(self.name, f"{self.peers[shard].name} did not come back: this group hosts its shard from now on.")
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

    def exchange_within(self, limit_s: float) -> None:
        """Exchanges every shard once within a time limit. Raises RolesError if an exchange failed.

        Unfinished exchanges continue in the background.
        """
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
        """Performs the last exchanges.

        The chief's group also waits for all others, and then has the sum of all deltas.
        """
        self.exchange_all()
        if self.group != CHIEF:
            self._transfer_masters()
            return
        self._wait_for_other_groups()
        self.exchange_all()

    def stop(self, limit_s: float) -> None:
        """Runs drain() with a time limit. Called when the run is stopped."""
        thread = threading.Thread(target=self._drain_quietly, name="hogwild-stop", daemon=True)
        thread.start()
        thread.join(limit_s)

    def _drain_quietly(self) -> None:
        with suppress(RolesError):  # Errors are ignored, because other groups may stop first.
            self.drain()

    def close(self) -> None:
        """Closes all connections and ends all threads."""
        for exchange in self._exchanges:
            exchange.close()
        self._server.close()

    def exchange_all(self) -> None:
        """Exchanges every shard with all local updates, and waits for the results."""
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

    def _transfer_masters(self) -> None:
        for shard, master in self.holdings.masters.items():
            tensors = empty_chunks(self.holdings.shards[shard])
            with master.lock:
                if master.moved_to is not None:
                    continue
                # The master accepts no more deltas. Callers repeat their requests until they receive the address of its
                # new host.
                master.moved_to = IN_TRANSIT
                master.read(tensors)
            header = {"op": "adopt", "shard": shard, "version": master.version, "lineage": self.holdings.lineage}
            self._send_to_chief({**header, "applied": list(master.applied.items())}, tensors)
            master.moved_to = CHIEF
            self.holdings.move(shard, CHIEF)
        self._send_to_chief({"op": "ended"}, [])

    def _send_to_chief(self, header: dict[str, Any], tensors: list[torch.Tensor]) -> None:
        deadline = time.monotonic() + self.host_wait_s
        while True:
            try:
                if "empty" not in self.calls.ask(CHIEF, header, tensors=tensors):
                    return
            except PeerLost as error:
                self.holdings.lose(CHIEF, error)
                if time.monotonic() > deadline:
                    raise
            time.sleep(FIRST_PAUSE_S)

    def _wait_for_other_groups(self) -> None:
        """Waits until every other group has ended or has been unreachable for `host_wait_s`."""
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

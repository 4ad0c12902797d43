"""DiLoCo's parameter servers and worker groups, in one process with real sockets and a join store."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch

from tests.roles.join_stores import KEY, Served
from tests.roles.processes import free_port
from tests.roles.strategies.hogwild.worker_groups import at_once
from torchyard_roles.coordination.join_store_client import JoinStore
from torchyard_roles.exchange import tensor_connection
from torchyard_roles.exchange.chunk_staging import PackedTensors
from torchyard_roles.exchange.quantization import WireCodec
from torchyard_roles.exchange.tensor_connection import Peer
from torchyard_roles.strategies.diloco.error_feedback import ErrorFeedbackCodec
from torchyard_roles.strategies.diloco.group_average import Outcome
from torchyard_roles.strategies.diloco.outer_server import ENDED, OuterServer
from torchyard_roles.strategies.diloco.outer_step import OuterParameters, flats_of
from torchyard_roles.strategies.diloco.server_average import ServerAverage
from torchyard_roles.strategies.parameter_server.server_checkpoint import ServerCheckpoint
from torchyard_roles.strategy_options import Options

DEADLINE_S = 60
SLOWNESS = (1, 1, 1, 4)


class Servers:
    """The servers of a run, each in its own thread."""

    def __init__(self, served: Served, count: int, groups: int, folder: Path | None = None, **options: Any) -> None:
        self.peers = [Peer(f"ps-{number}", "127.0.0.1", free_port()) for number in range(count)]
        self._served = served
        self.options = Options(kind="diloco", **options)
        self._store = JoinStore.connect(served.address, KEY, "test", None)
        self._store.delete(ENDED)
        self.servers = []
        self.threads = []
        for number, peer in enumerate(self.peers):
            checkpoint = ServerCheckpoint(folder, peer.name, number, count, "run-1") if folder is not None else None
            server = OuterServer(
                self.peers,
                number,
                groups,
                self.options,
                KEY,
                checkpoint=checkpoint,
                on_end=self._set_ended,
                host_wait_s=20,
            )
            listener = tensor_connection.listen_at(peer)
            thread = threading.Thread(target=server.serve, args=(listener,), daemon=True)
            thread.start()
            self.servers.append(server)
            self.threads.append(thread)

    def group(self, number: int, values: torch.Tensor, **restored: Any) -> Group:
        return Group(self, self._served, number, values, **restored)

    def have_ended(self) -> bool:
        """Returns whether all servers end by themselves within the timeout."""
        for thread in self.threads:
            thread.join(DEADLINE_S)
        return not any(thread.is_alive() for thread in self.threads)

    def _set_ended(self) -> None:
        self._store.set(ENDED, b"1")

    def close(self) -> None:
        for server in self.servers:
            server.stop()
        for thread in self.threads:
            thread.join(DEADLINE_S)
        self._store.close()


class Group:
    """A worker group whose model is a single tensor, which is divided into fragments."""

    def __init__(self, servers: Servers, served: Served, number: int, values: torch.Tensor, **restored: Any) -> None:
        self.number = number
        self.values = values
        fragments = servers.options.fragments
        self.parts = list(values.tensor_split(fragments))
        self.outer = OuterParameters([flats_of([part], [], at)[0] for at, part in enumerate(self.parts)])
        self.store = JoinStore.connect(served.address, KEY, f"worker-{number}", number)
        name = f"worker-{number}"
        codec = WireCodec(servers.options.wire)
        self.wire = ErrorFeedbackCodec(codec, self.outer.flats, has_feedback=servers.options.error_feedback)
        self.average = ServerAverage(
            number,
            name,
            servers.peers,
            KEY,
            self.store,
            self.outer,
            PackedTensors(()),
            self.wire,
            fragments=fragments,
            warmup_steps=servers.options.warmup_steps,
            host_wait_s=20,
            **restored,
        )
        self.outcomes: list[Outcome] = []

    def start(self, round_: int = -1, lineage: str = "") -> Outcome:
        outcome = self.average.start(round_, lineage)
        if outcome is Outcome.KEPT and round_ < 0:
            self.outer.begin()
        elif outcome is Outcome.REPLACED:
            self.outer.install()
        return outcome

    def push(self, weight: float = 1.0, *, has_finished: bool = False, fragment: int | None = None) -> None:
        weights = [weight] * (len(self.parts) if fragment is None else 1)
        outcome = self.average.average(
            self.outer.differences(fragment), weights, has_finished=has_finished, fragment=fragment
        )
        self.outcomes.append(outcome)
        if outcome is Outcome.AVERAGED:
            self.outer.install(fragment)
        elif outcome is Outcome.REPLACED:
            self.outer.install()

    def close(self, *, has_stopped: bool = False) -> None:
        self.average.close(has_stopped=has_stopped)
        self.store.close()


@contextmanager
def serving(served: Served, count: int, groups: int, folder: Path | None = None, **options: Any) -> Iterator[Servers]:
    servers = Servers(served, count, groups, folder, **options)
    try:
        yield servers
    finally:
        servers.close()


def share_of_own_speeds(store: Served, round_s: float, seconds: float, elements: int) -> float:
    """Returns the total throughput of all groups with `quorum: 3`, as a fraction of the total without any waiting.

    A group sleeps for `round_s` instead of computing; the last group sleeps four times as long.
    """
    with ExitStack() as closing:
        servers = closing.enter_context(serving(store, 2, len(SLOWNESS), quorum=3))
        groups = [servers.group(number, torch.zeros(elements)) for number in range(len(SLOWNESS))]
        for group in groups:
            closing.callback(group.close)
        at_once(*(group.start for group in groups))
        rates = [0.0] * len(groups)

        def train(group: Group) -> None:
            slowness = SLOWNESS[group.number]
            began, rounds = time.monotonic(), 0
            # A group ends only when a round is complete, so each rate is exact.
            while time.monotonic() - began < seconds - slowness * round_s / 2:
                time.sleep(slowness * round_s)
                group.values.sub_(1e-3)
                group.push()
                rounds += 1
            rates[group.number] = rounds / (time.monotonic() - began)
            group.close()

        threads = [threading.Thread(target=train, args=(group,), daemon=True) for group in groups]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return sum(rates) / sum(1 / (slowness * round_s) for slowness in SLOWNESS)

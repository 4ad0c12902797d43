"""Parameter servers and workers in one process, with real sockets and one thread for each, so that torch is imported
only once.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from torchyard_roles.environment import Environment, Options, PeerAddress, Peers
from torchyard_roles.exchange import tensor_connection
from torchyard_roles.strategies.parameter_server import server_process
from torchyard_roles.strategies.parameter_server.sandblaster_downpour import ParameterServerStrategy
from torchyard_roles.strategies.parameter_server.server_process import ParameterServer

DEADLINE_S = 60
SEEDING = threading.RLock()
"""Held while a model is created, because all threads share torch's random number generator."""


@dataclass
class Run:
    """A run with `workers` workers in `groups` worker groups of equal size, and with `servers` parameter servers."""

    workers: int = 2
    servers: int = 1
    groups: int = 1
    strategy: str = "sandblaster"
    chunk_bytes: int | None = 256
    generation: int = 0
    folder: str = ""
    run_id: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    key: bytes = field(default_factory=lambda: os.urandom(32))
    servers_now: list[ParameterServer] = field(default_factory=list)
    peers: Peers = field(default_factory=Peers)
    _threads: list[threading.Thread] = field(default_factory=list)

    @contextmanager
    def serving(self) -> Iterator[Run]:
        listeners = [tensor_connection.listen("127.0.0.1", 0) for _ in range(self.servers)]
        ports = [listener.getsockname()[1] for listener in listeners]
        self.peers = Peers(ps=tuple(PeerAddress(f"ps-{n}", "127.0.0.1", port) for n, port in enumerate(ports)))
        for number, listener in enumerate(listeners):
            self.servers_now.append(server_process.create_server(self.environment_of_server(number)))
            self._threads.append(self._served(number, listener))
        try:
            yield self
        finally:
            for server in self.servers_now:
                server.stop()
            for thread in self._threads:
                thread.join(timeout=DEADLINE_S)

    def _served(self, number: int, listener: socket.socket) -> threading.Thread:
        thread = threading.Thread(target=self.servers_now[number].serve, args=(listener,), daemon=True)
        thread.start()
        return thread

    def replace_server(self, number: int) -> None:
        """Kills a server before it can save, and starts its next generation."""
        self.servers_now[number].stop()
        self._threads[number].join(timeout=DEADLINE_S)
        self.servers_now[number] = server_process.create_server(
            replace(self.environment_of_server(number), generation=1)
        )
        self.servers_now[number].resume()
        self._threads[number] = self._served(number, tensor_connection.listen_at(self.peers.ps[number]))

    def ended(self) -> bool:
        """Returns whether all servers end by themselves within the timeout."""
        for thread in self._threads:
            thread.join(timeout=DEADLINE_S)
        return not any(thread.is_alive() for thread in self._threads)

    def environment_of_server(self, number: int) -> Environment:
        return replace(self._common(), role="ps", replica=f"ps-{number}", index=number, rank=None)

    def environment(self, rank: int) -> Environment:
        size = self.workers // self.groups
        group, group_rank = divmod(rank, size)
        return replace(
            self._common(),
            role="worker",
            replica=f"worker-{rank}",
            index=rank,
            rank=rank,
            group=group,
            group_rank=group_rank,
            group_size=size,
        )

    def _common(self) -> Environment:
        return Environment(
            world_size=self.workers,
            strategy=self.strategy,
            groups=self.groups,
            generation=self.generation,
            peers=self.peers,
            key=self.key,
            checkpoints=self.folder,
            run_id=self.run_id,
            options=Options(kind=self.strategy, **self.options),
        )

    def worker(self, rank: int) -> ParameterServerStrategy:
        strategy = ParameterServerStrategy(self.environment(rank), chunk_bytes=self.chunk_bytes)
        strategy.start(torch.device("cpu"))
        return strategy

    def on_workers(self, act: Callable[[int], Any]) -> list[Any]:
        """Calls act(rank) in a thread for each worker; raises the first error that occurs."""
        with ThreadPoolExecutor(self.workers) as pool:
            outcomes = [pool.submit(act, rank) for rank in range(self.workers)]
            return [outcome.result(timeout=DEADLINE_S) for outcome in outcomes]


def train(
    run: Run,
    model_of: Callable[[], torch.nn.Module],
    optimizer_of: Callable[[torch.nn.Module], torch.optim.Optimizer],
    batches: list[tuple[torch.Tensor, torch.Tensor]],
    *,
    schedule: Callable[[torch.optim.Optimizer], Any] | None = None,
    accumulate: int = 1,
) -> list[dict[str, torch.Tensor]]:
    """Trains each worker on its part of each batch; returns the final parameters of each worker's model."""

    def act(rank: int) -> dict[str, torch.Tensor]:
        strategy = run.worker(rank)
        with SEEDING:
            model = model_of()
        if rank:  # All workers receive the chief's parameters.
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.add_(1)
        optimizer = optimizer_of(model)
        model, optimizer = strategy.distribute(model, optimizer, torch.device("cpu"))
        descend(model, optimizer, batches, rank, run.workers, schedule=schedule, accumulate=accumulate)
        strategy.leave()
        return {name: value.clone() for name, value in model.state_dict().items()}

    with run.serving():
        outcome = run.on_workers(act)
        assert run.ended()
    return outcome


def descend(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: list[tuple[torch.Tensor, torch.Tensor]],
    part: int = 0,
    parts: int = 1,
    *,
    schedule: Callable[[torch.optim.Optimizer], Any] | None = None,
    accumulate: int = 1,
) -> None:
    scheduler = schedule(optimizer) if schedule else None
    for number, (inputs, targets) in enumerate(batches):
        loss = torch.nn.functional.mse_loss(model(inputs[part::parts]), targets[part::parts])
        (loss / accumulate).backward()
        if (number + 1) % accumulate == 0:
            optimizer.step()
            optimizer.zero_grad()
            if scheduler:
                scheduler.step()


def difference(states: dict[str, torch.Tensor], others: dict[str, torch.Tensor]) -> float:
    assert states.keys() == others.keys()
    return max((states[name].double() - others[name].double()).abs().max().item() for name in states)


def bytes_of(strategy: ParameterServerStrategy) -> tuple[int, int]:
    """Returns how many bytes a worker has sent and received over all its links."""
    connections = [link._connection for link in strategy.pairs[0]._links]
    return sum(each.sent_bytes for each in connections), sum(each.received_bytes for each in connections)

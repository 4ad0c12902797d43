"""Hogwild's worker groups, in one process with real sockets and one training thread per group."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from tests.roles.processes import free_port
from torchyard_roles.exchange import tensor_connection
from torchyard_roles.exchange.parameter_layout import LARGEST_CHUNK, Layout
from torchyard_roles.strategies.hogwild.worker_group import WorkerGroup

KEY = bytes(range(32))
DEADLINE_S = 30


class Trained:
    """A group and its model. Training adds random numbers to the model; `moved` is their sum."""

    def __init__(
        self, group: int, peers: list[tensor_connection.Peer], sizes: list[tuple[int, ...]], **options: object
    ) -> None:
        dtype = options.pop("dtype", torch.float64)
        generator = torch.Generator().manual_seed(7)
        self.parameters = [torch.nn.Parameter(torch.randn(size, generator=generator, dtype=dtype)) for size in sizes]
        if group:  # The other groups' values are replaced by the chief's.
            for parameter in self.parameters:
                parameter.data.add_(1)
        model = torch.nn.ParameterList(self.parameters)
        layout, parameters = Layout.of(model, torch.optim.SGD(self.parameters, lr=1.0))
        assert [id(one) for one in parameters] == [id(one) for one in self.parameters]
        key = options.pop("key", KEY)
        settings = {"sync_every": 1, "recover_s": 20.0, "host_wait_s": 20.0, **options}
        listener = tensor_connection.listen(peers[group].address, peers[group].port)
        shards = layout.by_shard(len(peers), LARGEST_CHUNK)
        self.group = WorkerGroup(group, peers, listener, key, layout.fingerprint(), shards, parameters, **settings)
        self.moved = [torch.zeros_like(parameter.data) for parameter in self.parameters]
        self._random = torch.Generator().manual_seed(group)

    def update(self) -> None:
        with torch.no_grad():
            for parameter, moved in zip(self.parameters, self.moved, strict=True):
                step = torch.randn(parameter.shape, generator=self._random, dtype=parameter.dtype)
                parameter.add_(step)
                moved.add_(step)

    def train(self, updates: int, pause_s: float = 0.0) -> None:
        """Makes updates with pauses of up to `pause_s`, so that an exchange overlaps with several updates."""
        rolls = random.Random(self.group.group)
        pause = threading.Event()
        for _ in range(updates):
            self.update()
            self.group.boundary()
            pause.wait(rolls.random() * pause_s)

    @property
    def exchanges(self) -> int:
        return sum(copy.exchanges & 0xFFFFFFFF for copy in self.group.copies)


def peers_of(count: int) -> list[tensor_connection.Peer]:
    return [tensor_connection.Peer(f"worker-{number}", "127.0.0.1", free_port()) for number in range(count)]


def sum_of(start: list[torch.Tensor], *groups: Trained) -> list[torch.Tensor]:
    return [first + sum(group.moved[at] for group in groups) for at, first in enumerate(start)]


def values(trained: Trained) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in trained.parameters]


def largest_difference(left: list[torch.Tensor], right: list[torch.Tensor]) -> float:
    return max((one - other).abs().max().item() for one, other in zip(left, right, strict=True))


def at_once(*calls: Callable[[], object]) -> None:
    """Runs each call in its own thread, waits until all have ended, and raises the first error."""
    problems: list[BaseException] = []

    def run(call: Callable[[], object]) -> None:
        try:
            call()
        except BaseException as error:  # The thread that waits for all calls raises the exception again.
            problems.append(error)

    threads = [threading.Thread(target=run, args=(call,), daemon=True) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
        assert not thread.is_alive(), "a group hangs"
    if problems:
        raise problems[0]


@contextmanager
def groups_of(count: int, sizes: list[tuple[int, ...]], **options: object) -> Iterator[list[Trained]]:
    peers = peers_of(count)
    groups = [Trained(number, peers, sizes, **options) for number in range(count)]
    try:
        at_once(*(each.group.start for each in groups))
        yield groups
    finally:
        for each in groups:
            each.group.close()

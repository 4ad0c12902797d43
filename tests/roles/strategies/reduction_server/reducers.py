"""Reducers in the test's process, with real sockets and one thread per worker."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from torchyard_roles.exchange.tensor_connection import Peer, listen
from torchyard_roles.strategies.reduction_server.reducer import Reducer
from torchyard_roles.strategies.reduction_server.reducer_client import ReduceClient

KEY = os.urandom(32)
DEADLINE_S = 30


class Reducers:
    """Reducers that tests can stop and restart."""

    def __init__(self, count: int) -> None:
        listeners = [listen("127.0.0.1", 0) for _ in range(count)]
        self.peers = [Peer(f"reducer-{n}", *each.getsockname()) for n, each in enumerate(listeners)]
        self.all = [Reducer(each, KEY, peer.name).start() for each, peer in zip(listeners, self.peers, strict=True)]

    def replace(self, number: int) -> None:
        self.all[number].close()
        peer = self.peers[number]
        self.all[number] = Reducer(listen(peer.address, peer.port), KEY, peer.name).start()

    def client(self, rank: int, world: int, order: str = "rank", **options: Any) -> ReduceClient:
        options = {"chunk_bytes": 16384, **options}
        return ReduceClient(self.peers, [1.0] * len(self.peers), KEY, rank, world, order, **options)


@pytest.fixture
def reducers() -> Iterator[Callable[[int], Reducers]]:
    made: list[Reducers] = []

    def make(count: int) -> Reducers:
        made.append(Reducers(count))
        return made[-1]

    yield make
    for each in made:
        for one in each.all:
            one.close()


def parts_of(world: int, count: int = 20_011, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(count, generator=generator, dtype=torch.float64).to(dtype) for _ in range(world)]


def in_rank_order(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    total = parts[0].clone()
    for part in parts[1:]:
        total += part
    return total


def on_ranks(world: int, act: Callable[[int], Any]) -> list[Any]:
    with ThreadPoolExecutor(world) as pool:
        return [each.result(DEADLINE_S) for each in [pool.submit(act, rank) for rank in range(world)]]

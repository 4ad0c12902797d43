"""Tests of sums over all ranks that reducers compute, with real sockets and one thread per worker."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.roles.strategies.reduction_server.reducers import (
    DEADLINE_S,
    KEY,
    Reducers,
    in_rank_order,
    on_ranks,
    parts_of,
    reducers,
)
from torchyard_agent.protocol import authenticated_transport
from torchyard_roles.errors import ProtocolError
from torchyard_roles.exchange.tensor_connection import Connection
from torchyard_roles.strategies.reduction_server.reducer import Reducer
from torchyard_roles.strategies.reduction_server.reducer_client import ReduceClient, fitting_chunk, split

__all__ = ["reducers"]

pytestmark = pytest.mark.train


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sums_in_rank_order_are_the_same_bit_by_bit_however_late_a_rank_is(
    reducers: Callable[[int], Reducers], dtype: torch.dtype
) -> None:
    world, mine, parts = 3, reducers(2), parts_of(3, dtype=dtype)
    expected = in_rank_order(parts)
    # If the sum did not depend on the order of the values, the test would prove nothing.
    assert not torch.equal(expected, in_rank_order(parts[::-1]))

    def work(rank: int) -> list[torch.Tensor]:
        client = mine.client(rank, world)
        sums = []
        for step in range(4):
            if rank == step % world:
                time.sleep(0.05)
            flat = parts[rank].clone()
            large, small = client.reduce(flat[100:], step, 0), client.reduce(flat[:100], step, 1)
            large.result(DEADLINE_S)
            small.result(DEADLINE_S)
            sums.append(flat)
        client.close()
        return sums

    assert all(torch.equal(each, expected) for sums in on_ranks(world, work) for each in sums)


def test_in_order_of_arrival_all_ranks_have_the_same_bits_and_the_right_sum(
    reducers: Callable[[int], Reducers],
) -> None:
    world, mine, parts = 3, reducers(2), parts_of(3)

    def work(rank: int) -> torch.Tensor:
        client = mine.client(rank, world, "arrival")
        flat = parts[rank].clone()
        client.reduce(flat, 0, 0).result(DEADLINE_S)
        client.close()
        return flat

    first, *others = on_ranks(world, work)
    assert torch.allclose(first, in_rank_order(parts), atol=1e-5)
    assert all(torch.equal(first, other) for other in others)


def test_sixteen_bits_are_summed_in_thirty_two(reducers: Callable[[int], Reducers]) -> None:
    mine = reducers(1)

    def work(rank: int) -> torch.Tensor:
        client = mine.client(rank, 3)
        # From 256 on, bfloat16 represents only even numbers. If each sum were rounded, 256 + 1 + 1 would be 256.
        flat = torch.full((9,), [256.0, 1.0, 1.0][rank], dtype=torch.bfloat16)
        client.reduce(flat, 0, 0).result(DEADLINE_S)
        client.close()
        return flat

    assert all((flat == 258).all() for flat in on_ranks(3, work))


def test_mixed_and_pure_give_the_same_bits_and_a_ranks_own_share_stays_in_its_process(
    reducers: Callable[[int], Reducers],
) -> None:
    world, mine = 3, reducers(1)
    helpers, parts = reducers(world), parts_of(3)
    peers = [*mine.peers, *helpers.peers]

    def work(rank: int) -> tuple[torch.Tensor, int]:
        local = {1 + rank: helpers.all[rank]}
        client = ReduceClient(peers, [4, 2, 2, 2], KEY, rank, world, chunk_bytes=8192, divisor=world, local=local)
        for step in range(3):
            flat = parts[rank].clone()
            client.reduce(flat, step, 0).result(DEADLINE_S)
        sent = client.sent_bytes
        client.close()
        return flat, sent

    for flat, sent in on_ranks(world, work):
        assert torch.equal(flat, in_rank_order(parts) / world)
        assert sent == pytest.approx(3 * 0.8 * flat.numel() * 4, rel=0.03)


def test_chunks_of_another_size_between_two_steps_give_the_same_bits_also_to_a_reducer_that_comes_back(
    reducers: Callable[[int], Reducers],
) -> None:
    world, mine, parts = 2, reducers(2), parts_of(2)
    sizes, steps_done = [16384, 4096, 65536, 8192], threading.Barrier(world)

    def work(rank: int) -> list[torch.Tensor]:
        client = mine.client(rank, world)
        sums = []
        for step, size in enumerate(sizes):
            client.resize(size)
            flat = parts[rank].clone()
            done = client.reduce(flat, step, 0)
            if step == 2 and rank == 1:
                mine.replace(0)
            done.result(DEADLINE_S)
            sums.append(flat)
            steps_done.wait(DEADLINE_S)
        assert client.bytes_a_second > 0
        with pytest.raises(ValueError, match="at most"):
            client.resize(client.terms.chunk_bytes + 1)
        client.close()
        return sums

    assert all(torch.equal(each, in_rank_order(parts)) for sums in on_ranks(world, work) for each in sums)


def test_a_slow_network_gets_small_chunks_and_a_fast_one_large_ones() -> None:
    rates = [0, 11e6, 25e6, 100e6, 1e9, 9e9]
    expected = [48 * 1024, 48 * 1024, 60 * 1024, 244 * 1024, 2440 * 1024, 4096 * 1024]
    assert [fitting_chunk(rate) for rate in rates] == expected


def test_the_wait_for_the_last_rank_is_measured_apart_from_the_exchange(reducers: Callable[[int], Reducers]) -> None:
    mine, has_come = reducers(1), threading.Event()

    class Told(Reducer):
        def _add(self, *arguments: Any, **options: Any) -> None:
            super()._add(*arguments, **options)
            has_come.set()

    mine.all[0].__class__ = Told

    def work(rank: int) -> tuple[float, float, float]:
        client = mine.client(rank, 2)
        if rank == 1:
            assert has_come.wait(DEADLINE_S)
            time.sleep(0.3)  # The reducer counts this delay of rank 1 as waiting time.
        began = time.monotonic()
        client.reduce(torch.ones(10), 0, 0).result(DEADLINE_S)
        took = time.monotonic() - began
        times = client.times()
        client.close()
        return times.wait_s, times.exchange_s, took

    (first, first_exchange, first_took), (last, last_exchange, last_took) = on_ranks(2, work)
    assert first >= 0.299
    assert last == 0
    assert 0 < first_exchange <= first_took - first
    assert 0 < last_exchange <= last_took


@pytest.mark.parametrize("other", [torch.ones(999), torch.ones(1000, dtype=torch.float64)])
def test_ranks_with_different_models_both_raise(reducers: Callable[[int], Reducers], other: torch.Tensor) -> None:
    mine = reducers(1)

    def work(rank: int) -> str:
        client = mine.client(rank, 2, chunk_bytes=8192)
        done = client.reduce(torch.ones(1000) if rank == 0 else other.clone(), 0, 0)
        error = done.exception(DEADLINE_S)
        client.close()
        assert isinstance(error, ProtocolError)
        return error.message

    for sentence in on_ranks(2, work):
        assert "the trainers' models differ" in sentence


def test_ranks_that_disagree_on_the_terms_are_refused(reducers: Callable[[int], Reducers]) -> None:
    mine = reducers(1)
    client = mine.client(0, 2)
    with pytest.raises(ProtocolError, match="all trainers must run the same topology"):
        mine.client(1, 3)
    newer = mine.client(0, 2, generation=1)
    with pytest.raises(ProtocolError, match="replaced by a newer one"):
        mine.client(1, 2, generation=0)
    newer.close()
    client.close()


def test_a_caller_without_the_key_is_refused_and_a_silent_one_delays_no_rank(
    reducers: Callable[[int], Reducers], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(authenticated_transport, "HANDSHAKE_DEADLINE_S", 600.0)
    mine = reducers(1)
    with socket.create_connection(mine.peers[0][1:]):
        with pytest.raises(ProtocolError, match="another key"):
            Connection.connect(mine.peers[0], os.urandom(32), {"name": "stranger"}, DEADLINE_S)
        client = mine.client(0, 1)
        flat = torch.ones(5)
        client.reduce(flat, 0, 0).result(DEADLINE_S)
        client.close()


def test_shares_are_contiguous_and_by_weight_and_small_tensors_go_to_one() -> None:
    assert split(100_000, [2, 1, 1], 4, 0) == [(0, 50_000), (50_000, 75_000), (75_000, 100_000)]
    assert split(100_000, [1, 0, 1], 4, 0) == [(0, 50_000), (50_000, 50_000), (50_000, 100_000)]
    assert split(100, [1, 0, 1], 4, 0) == [(0, 100), (0, 0), (0, 0)]
    assert split(100, [1, 0, 1], 4, 1) == [(0, 0), (0, 0), (0, 100)]

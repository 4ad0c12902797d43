"""Sums over all ranks by way of reducers, over real sockets; a thread stands for each worker."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from torchyard_roles.errors import PeerLost, ProtocolError, RolesError
from torchyard_roles.exchange import reducer as reducer_module
from torchyard_roles.exchange.reduce_client import ReduceClient, fitting_chunk, split
from torchyard_roles.exchange.reducer import Deliver, Reducer, Terms
from torchyard_roles.exchange.wire import Connection, Peer, listen

pytestmark = pytest.mark.train

KEY = os.urandom(32)
DEADLINE_S = 30


class Reducers:
    """Some reducers of this process, which can be lost and come back."""

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


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sums_in_rank_order_are_the_same_bit_by_bit_however_late_a_rank_is(
    reducers: Callable[[int], Reducers], dtype: torch.dtype
) -> None:
    world, mine, parts = 3, reducers(2), parts_of(3, dtype=dtype)
    expected = in_rank_order(parts)
    assert not torch.equal(expected, in_rank_order(parts[::-1]))  # else this test would show nothing

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
        # 256 is where bfloat16 counts in twos: 256 + 1 + 1 would stay 256 if each sum were rounded.
        flat = torch.full((9,), [256.0, 1.0, 1.0][rank], dtype=torch.bfloat16)
        client.reduce(flat, 0, 0).result(DEADLINE_S)
        client.close()
        return flat

    assert all((flat == 258).all() for flat in on_ranks(3, work))


@pytest.mark.parametrize("order", ["rank", "arrival"])
def test_a_reducer_that_dies_in_a_step_is_replaced_and_all_ranks_go_on_with_the_same_numbers(
    reducers: Callable[[int], Reducers], order: str, capfd: pytest.CaptureFixture[str]
) -> None:
    world, mine = 3, reducers(2)
    parts = parts_of(world, 400_000)
    partly = threading.Event()

    def work(rank: int) -> list[torch.Tensor]:
        client = mine.client(rank, world, order, window=2, reconnect_s=DEADLINE_S)
        sums = []
        for step in range(5):
            if step == 2 and rank == 2:
                # The others have given all that their credit allows; this rank is the last, and the reducer dies
                # while some have sums already that others still lack.
                threading.Thread(target=lambda: (time.sleep(0.005), mine.replace(0), partly.set())).start()
            flat = parts[rank].clone()
            client.reduce(flat, step, 0).result(DEADLINE_S)
            sums.append(flat)
        client.close()
        return sums

    outcomes = on_ranks(world, work)
    assert partly.wait(DEADLINE_S)
    for step in range(5):
        assert all(torch.equal(sums[step], outcomes[0][step]) for sums in outcomes)
        assert torch.allclose(outcomes[0][step], in_rank_order(parts), atol=1e-5)
        if order == "rank":
            assert torch.equal(outcomes[0][step], in_rank_order(parts))
    said = capfd.readouterr().err
    assert said.count("reducer-0 on 127.0.0.1 is gone: ") == said.count("reducer-0 is back") == world


def test_what_is_kept_for_a_reducer_that_dies_is_one_copy_of_a_step_however_many_there_are(
    reducers: Callable[[int], Reducers],
) -> None:
    world, mine = 2, reducers(2)
    chunks, window = 4 * 400_000 / 16384, 3

    def work(rank: int) -> int:
        client = mine.client(rank, world, window=window)
        flat = torch.ones(400_000)
        for step in range(6):
            client.reduce(flat, step, 0).result(DEADLINE_S)
        held = [chunk for link in client._links for chunk in link._history.values() if chunk.kept is not None]
        assert {chunk.at[0] for chunk in held} == {5}
        client.close()
        return len(held) + len(client.memory._spare)

    for copies in on_ranks(world, work):
        assert chunks <= copies <= chunks + len(mine.all) * (window + 1)


def test_one_rank_that_comes_again_to_a_living_reducer_is_not_counted_twice(
    reducers: Callable[[int], Reducers],
) -> None:
    world, mine, parts = 2, reducers(1), parts_of(2)

    def work(rank: int) -> torch.Tensor:
        client = mine.client(rank, world, window=2, reconnect_s=DEADLINE_S)
        for step in range(3):
            flat = parts[rank].clone()
            done = client.reduce(flat, step, 0)
            if rank == 0 and step == 1:
                client._links[0].connection.close()
            done.result(DEADLINE_S)
            assert torch.equal(flat, in_rank_order(parts))
        client.close()
        return flat

    on_ranks(world, work)


def test_a_step_that_others_have_behind_them_is_sent_again_without_waiting_for_them(
    reducers: Callable[[int], Reducers],
) -> None:
    mine, parts = reducers(1), parts_of(2)
    client = mine.client(0, 2, window=2, reconnect_s=DEADLINE_S)
    size = parts[1].numel() * 4
    edges = list(range(0, size, 16384))

    def send_as_rank_1(step: int) -> Connection:
        terms = Terms(0, 2, "rank", client.terms.chunk_bytes)._asdict()
        connection, _ = Connection.connect(mine.peers[0], KEY, {"name": "worker-1", "rank": 1, **terms}, DEADLINE_S)
        for number, start in enumerate(edges):
            connection.send({"at": (step, 0, number)}, parts[1][start // 4 : (start + 16384) // 4])
        return connection

    first, second = parts[0].clone(), parts[0].clone()
    done = client.reduce(first, 0, 0)
    before = send_as_rank_1(0)
    done.result(DEADLINE_S)
    done = client.reduce(second, 1, 0)
    mine.replace(0)  # to the new one, rank 0 sends all of step 0 first: more than the window holds
    after = send_as_rank_1(1)
    done.result(DEADLINE_S)
    assert torch.equal(second, in_rank_order(parts))
    assert len(edges) > client.window
    client.close()
    before.close()
    after.close()


def test_a_sum_reaches_the_new_connection_of_a_rank_whose_old_one_is_heard_late(
    reducers: Callable[[int], Reducers],
) -> None:
    (reducer,) = reducers(1).all
    terms, at, parts = Terms(0, 2, "rank", 16384), (0, 0, 0), parts_of(2, 10)
    given: dict[str, torch.Tensor] = {}

    def to(connection: str) -> Deliver:
        return lambda at, total, waited_s: given.update({connection: total})

    for rank, connection in ((0, "new"), (0, "old"), (1, "only")):
        reducer.contribute(terms, rank, at, parts[rank].clone(), to(connection))
    assert torch.equal(given["new"], in_rank_order(parts))
    assert torch.equal(given["only"], given["new"])


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
    rates = [0, 11e6, 25e6, 100e6, 1e9]
    assert [fitting_chunk(rate) for rate in rates] == [48 * 1024, 48 * 1024, 60 * 1024, 244 * 1024, 1024 * 1024]


def test_the_wait_for_the_last_rank_is_told_apart_from_the_exchange(reducers: Callable[[int], Reducers]) -> None:
    mine, has_come = reducers(1), threading.Event()

    def work(rank: int) -> tuple[float, float]:
        client = mine.client(rank, 2)
        if rank == 1:
            assert has_come.wait(DEADLINE_S)
            time.sleep(0.6)  # by which it is later than the other
        done = client.reduce(torch.ones(10), 0, 0)
        has_come.set()
        done.result(DEADLINE_S)
        times = client.times()
        client.close()
        return times.wait_s, times.exchange_s

    (first, first_exchange), (last, last_exchange) = on_ranks(2, work)
    assert first > 0.3
    assert max(last, first_exchange, last_exchange) < first / 2


@pytest.mark.parametrize("other", [torch.ones(999), torch.ones(1000, dtype=torch.float64)])
def test_ranks_with_different_models_are_both_told(reducers: Callable[[int], Reducers], other: torch.Tensor) -> None:
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


def test_a_stranger_is_refused_and_a_silent_one_keeps_nobody_waiting(reducers: Callable[[int], Reducers]) -> None:
    mine = reducers(1)
    with socket.create_connection(mine.peers[0][1:]):
        with pytest.raises(ProtocolError, match="another key"):
            Connection.connect(mine.peers[0], os.urandom(32), {"name": "stranger"}, 5)
        client = mine.client(0, 1)
        flat = torch.ones(5)
        client.reduce(flat, 0, 0).result(2)
        client.close()


def test_a_rank_that_ends_without_goodbye_is_named_to_the_others(
    reducers: Callable[[int], Reducers], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reducer_module, "COMES_BACK_S", 0.2)
    mine = reducers(2)
    leaving, waiting = mine.client(1, 2, reconnect_s=0.1), mine.client(0, 2)
    done = waiting.reduce(torch.ones(100_000), 0, 0)
    for link in leaving._links:
        link._ended = True  # as a killed process, which cannot come back
        link.connection.close()
    error = done.exception(5)
    assert isinstance(error, PeerLost)
    assert (error.name, error.host) == ("worker-1", "127.0.0.1")
    assert waiting.reduce(torch.ones(3), 0, 1).exception(1) is error
    waiting.close()
    leaving.close()


def test_a_rank_that_is_abandoned_says_no_goodbye_and_the_others_are_told(reducers: Callable[[int], Reducers]) -> None:
    cluster = reducers(1)
    clients = [cluster.client(rank, 2) for rank in range(2)]
    future = clients[0].reduce(torch.ones(10), 0, 0)
    clients[1].close(goodbye=False)
    with pytest.raises(PeerLost, match="worker-1"):
        future.result(DEADLINE_S)
    clients[0].close()


def test_an_error_of_torch_in_the_sending_thread_ends_what_waits_for_a_sum(
    reducers: Callable[[int], Reducers], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = reducers(1)
    client = cluster.client(0, 2)

    def fails(_: object) -> None:
        raise RuntimeError("not enough memory")

    monkeypatch.setattr(client.memory, "take", fails)
    with pytest.raises(RolesError, match="The exchange of gradients failed: not enough memory"):
        client.reduce(torch.ones(10), 0, 0).result(DEADLINE_S)
    client.close()


def test_a_sum_that_arrives_while_the_exchange_fails_ends_its_future_once(
    reducers: Callable[[int], Reducers], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = reducers(1)
    client = cluster.client(0, 2)
    future = client.reduce(torch.ones(10), 0, 0)
    (operation,) = client._running
    ((chunk,),) = client._chunks(operation)
    monkeypatch.setattr(future, "done", lambda: False)  # as another thread sees it a moment before
    client.fail(PeerLost("worker-1", "127.0.0.1", "gone"))
    client.finished(chunk, 0.0)
    assert not future.cancel()
    with pytest.raises(PeerLost):
        future.result(0)
    client.close()


def test_shares_are_contiguous_and_by_weight_and_small_tensors_go_to_one() -> None:
    assert split(100_000, [2, 1, 1], 4, 0) == [(0, 50_000), (50_000, 75_000), (75_000, 100_000)]
    assert split(100_000, [1, 0, 1], 4, 0) == [(0, 50_000), (50_000, 50_000), (50_000, 100_000)]
    assert split(100, [1, 0, 1], 4, 0) == [(0, 100), (0, 0), (0, 0)]
    assert split(100, [1, 0, 1], 4, 1) == [(0, 0), (0, 0), (0, 100)]

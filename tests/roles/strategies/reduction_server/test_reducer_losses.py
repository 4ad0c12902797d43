"""Tests of losing and restarting reducers and ranks: each contribution is added to its sum exactly once."""

from __future__ import annotations

import math
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
from tests.waiting import wait_until
from torchyard_roles.errors import PeerLost, ProtocolError, RolesError
from torchyard_roles.exchange.tensor_connection import Connection
from torchyard_roles.strategies.reduction_server import reducer as reducer_module
from torchyard_roles.strategies.reduction_server.chunk_sum import Deliver
from torchyard_roles.strategies.reduction_server.reducer import Reducer, Terms

__all__ = ["reducers"]

pytestmark = pytest.mark.train


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
                # The other ranks have used up their credit, so the reducer waits for this rank only. The reducer is
                # killed when some sums have reached some of the ranks.
                threading.Thread(target=lambda: (time.sleep(0.005), mine.replace(0), partly.set())).start()
            if step == 3:
                assert partly.wait(DEADLINE_S)
            flat = parts[rank].clone()
            client.reduce(flat, step, 0).result(DEADLINE_S)
            sums.append(flat)
        client.close()
        return sums

    outcomes = on_ranks(world, work)
    for step in range(5):
        assert all(torch.equal(sums[step], outcomes[0][step]) for sums in outcomes)
        assert torch.allclose(outcomes[0][step], in_rank_order(parts), atol=1e-5)
        if order == "rank":
            assert torch.equal(outcomes[0][step], in_rank_order(parts))
    log = capfd.readouterr().err
    assert log.count("reducer-0 on 127.0.0.1 is gone: ") == log.count("reducer-0 is back") == world


def test_what_is_kept_for_a_reducer_that_dies_is_one_copy_of_a_step_however_many_there_are(
    reducers: Callable[[int], Reducers],
) -> None:
    world, mine = 2, reducers(2)
    chunks, window = math.ceil(4 * 400_000 / 16384), 3

    def work(rank: int) -> int:
        client = mine.client(rank, world, window=window)
        flat = torch.ones(400_000)
        for step in range(6):
            client.reduce(flat, step, 0).result(DEADLINE_S)
        held = [chunk for link in client._links for chunk in link._history.values() if chunk.kept is not None]
        assert {chunk.at[0] for chunk in held} == {5}
        client.close()
        return len(held) + len(client.memory._spare)

    # A client holds the copies of one step and, for each reducer, the unconfirmed chunks, a chunk that is being copied,
    # and a confirmed chunk whose memory has not been returned yet.
    for copies in on_ranks(world, work):
        assert chunks <= copies <= chunks + len(mine.all) * (window + 2)


def test_one_rank_that_comes_again_to_a_living_reducer_is_not_counted_twice(
    reducers: Callable[[int], Reducers], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reducer_module, "REJOIN_S", DEADLINE_S)
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


def test_a_rank_that_has_come_back_is_not_called_lost_by_a_reducer_that_looks_for_it_late(
    reducers: Callable[[int], Reducers], monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, looked, miss = reducers(1), threading.Event(), Reducer._miss
    clients = [mine.client(rank, 2, reconnect_s=DEADLINE_S) for rank in range(2)]
    links = mine.all[0]._round.links
    before = links[0]

    class Late:
        monotonic = time.monotonic

        @staticmethod
        def sleep(seconds: float) -> None:
            deadline = time.monotonic() + DEADLINE_S
            while links[0] is before and time.monotonic() < deadline:
                time.sleep(0.005)
            time.sleep(0.1)

    def miss_and_tell(*arguments: Any) -> None:
        miss(*arguments)
        looked.set()

    monkeypatch.setattr(reducer_module, "REJOIN_S", 0.1)
    monkeypatch.setattr(reducer_module, "time", Late)
    monkeypatch.setattr(Reducer, "_miss", miss_and_tell)
    clients[0]._links[0].connection.close()
    assert looked.wait(DEADLINE_S)
    for done in [client.reduce(torch.ones(10), 0, 0) for client in clients]:
        assert (done.result(DEADLINE_S) == 2).all()
    for client in clients:
        client.close()


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
            connection.send({"chunk": (step, 0, number)}, parts[1][start // 4 : (start + 16384) // 4])
        return connection

    first, second = parts[0].clone(), parts[0].clone()
    done = client.reduce(first, 0, 0)
    before = send_as_rank_1(0)
    done.result(DEADLINE_S)
    done = client.reduce(second, 1, 0)
    mine.replace(0)  # Rank 0 first sends all of step 0 to the new reducer, which is more than the window allows.
    after = send_as_rank_1(1)
    done.result(DEADLINE_S)
    assert torch.equal(second, in_rank_order(parts))
    assert len(edges) > client.window
    client.close()
    before.close()
    after.close()


def test_a_sum_reaches_the_new_connection_of_a_rank_whose_old_one_is_read_late(
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


def test_a_rank_that_ends_without_goodbye_is_named_to_the_others(
    reducers: Callable[[int], Reducers], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reducer_module, "REJOIN_S", 0.2)
    mine = reducers(2)
    leaving, waiting = mine.client(1, 2, reconnect_s=0.1), mine.client(0, 2)
    done = waiting.reduce(torch.ones(100_000), 0, 0)
    for link in leaving._links:
        # The client does not announce that it leaves, so the reducer assumes that its process was killed.
        link._ended = True
        link.connection.close()
    error = done.exception(DEADLINE_S)
    assert isinstance(error, PeerLost)
    assert (error.name, error.host) == ("worker-1", "127.0.0.1")
    assert waiting.reduce(torch.ones(3), 0, 1).exception(1) is error
    waiting.close()
    leaving.close()


def test_a_rank_that_is_abandoned_sends_no_goodbye_and_the_others_are_informed(
    reducers: Callable[[int], Reducers],
) -> None:
    cluster = reducers(1)
    clients = [cluster.client(rank, 2) for rank in range(2)]
    future = clients[0].reduce(torch.ones(10), 0, 0)
    clients[1].close(goodbye=False)
    with pytest.raises(PeerLost, match="worker-1"):
        future.result(DEADLINE_S)
    clients[0].close()


def test_the_others_hear_whose_loss_ended_a_rank_and_not_of_its_own_end(reducers: Callable[[int], Reducers]) -> None:
    """A rank that exits because of the loss of a third rank reports that loss, so the others report it too."""
    mine = reducers(2)
    ends, waits = mine.client(0, 2), mine.client(1, 2)
    future = waits.reduce(torch.ones(100_000), 0, 0)
    ends.fail(PeerLost("worker-2", "10.0.0.3", "it closed the connection"))
    ends.close(goodbye=False)
    error = future.exception(DEADLINE_S)
    assert isinstance(error, PeerLost)
    assert (error.name, error.host, error.why) == ("worker-2", "10.0.0.3", "it closed the connection")
    waits.close()


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
    # Simulates a thread that has called done() before the failure.
    monkeypatch.setattr(future, "done", lambda: False)
    client.fail(PeerLost("worker-1", "127.0.0.1", "gone"))
    client.finished(chunk, 0.0)
    assert not future.cancel()
    with pytest.raises(PeerLost):
        future.result(0)
    client.close()


def test_a_newer_membership_discards_the_sums_of_the_interrupted_step_and_counts_on_its_own_members(
    reducers: Callable[[int], Reducers],
) -> None:
    mine = reducers(2)
    before = [mine.client(rank, 3) for rank in range(3)]
    interrupted = [before[rank].reduce(torch.full((100_000,), 7.0), 4, 0) for rank in (0, 2)]
    rounds = [each._round for each in mine.all if each._round is not None]
    sent = [2] * before[0].window  # Each rank has sent as many chunks as the window allows.
    wait_until(lambda: all([len(chunk.arrived) for chunk in one.sums.values()] == sent for one in rounds))
    parts = parts_of(2, 100_000)

    def repeat(place: int) -> torch.Tensor:
        client = mine.client(place, 2, membership=1, divisor=2)
        flat = parts[place].clone()
        client.reduce(flat, 4, 0).result(DEADLINE_S)
        client.close()
        return flat

    means = on_ranks(2, repeat)
    assert all(torch.equal(mean, in_rank_order(parts) / 2) for mean in means)
    assert [one.sums for one in rounds] == [{}, {}]
    assert not any(each.done() for each in interrupted)
    with pytest.raises(ProtocolError, match="Membership 0 of the trainers was replaced by a newer one"):
        mine.client(1, 3)
    for client in before:
        client.close(goodbye=False)
    later = mine.client(0, 1, generation=1)
    later.reduce(torch.ones(10), 0, 0).result(DEADLINE_S)
    later.close()

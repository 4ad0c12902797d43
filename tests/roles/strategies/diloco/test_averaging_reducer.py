"""Tests of DiLoCo's reducers in one process, compared with groups that average without reducers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
import torch

from tests.roles.join_stores import KEY, Served, serve_in_a_process
from tests.roles.processes import free_port
from tests.roles.strategies.diloco.test_group_average import SIZE, Averaged, average_all, clean
from tests.roles.strategies.hogwild.worker_groups import at_once, peers_of
from torchyard_roles.coordination.join_store_client import JoinStore
from torchyard_roles.exchange.quantization import WireCodec
from torchyard_roles.exchange.tensor_connection import Peer, listen_at
from torchyard_roles.strategies.diloco.averaging_reducer import Attendance, AveragingReducer
from torchyard_roles.strategies.diloco.group_average import Outcome

pytestmark = pytest.mark.train
ROUNDS = 4


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    store = serve_in_a_process()
    yield store
    store.end()


class Reduced:
    """Three groups, and the given number of reducers. Without reducers, the groups average by themselves."""

    def __init__(self, served: Served, closing: ExitStack, wire: str, reducers: int) -> None:
        clean(served)
        self.served = served
        self.wire = wire
        self._closing = closing
        self.peers = [Peer(f"reducer-{number}", "127.0.0.1", free_port()) for number in range(reducers)]
        self.reducers: list[AveragingReducer] = []
        self.attendances: list[Attendance] = []
        for number in range(reducers):
            self.start_reducer(number)
        trainers = peers_of(3)
        self.groups = [Averaged(number, trainers, served, SIZE, wire, reducers) for number in range(3)]
        for each in self.groups:
            closing.callback(each.close)
        at_once(*(each.start for each in self.groups))

    def start_reducer(self, number: int) -> None:
        store = JoinStore.connect(self.served.address, KEY, f"reducer-{number}", None)
        self._closing.callback(store.close)
        peer = self.peers[number]
        server = AveragingReducer(listen_at(peer), KEY, peer.name, WireCodec(self.wire))
        self._closing.callback(server.close)
        self.reducers[number:] = [server, *self.reducers[number + 1 :]]
        attendance = Attendance(store, number, peer, server)
        self.attendances[number:] = [attendance, *self.attendances[number + 1 :]]
        attendance.announce()


def values(seed: int = 3) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(SIZE, generator=generator) for _ in range(3)]


def trained(served: Served, wire: str, reducers: int) -> list[torch.Tensor]:
    with ExitStack() as closing:
        groups = Reduced(served, closing, wire, reducers).groups
        for number in range(ROUNDS):
            average_all(groups, values(number))
        assert [each.average.weight for each in groups] == [3.0] * 3
        assert len({each.average.divergence for each in groups}) == 1
        return [each.outer.theta[0] for each in groups]


@pytest.mark.parametrize("wire", ["float32", "int8"])
def test_the_result_is_that_of_groups_without_reducers(served: Served, wire: str) -> None:
    expected, *_ = trained(served, wire, 0)
    for found in trained(served, wire, 2):
        assert torch.equal(found, expected)


def test_each_group_sends_and_receives_the_model_once_per_round(served: Served) -> None:
    with ExitStack() as closing:
        groups = Reduced(served, closing, "int8", 2).groups
        before = [each.average.traffic() for each in groups]
        for _ in range(ROUNDS):
            average_all(groups, values())
        formula = ROUNDS * WireCodec("int8").size(SIZE)
        for each, counts in zip(groups, before, strict=True):
            for now, then in zip(each.average.traffic(), counts, strict=True):
                assert now - then == pytest.approx(formula, rel=0.05)


def test_groups_continue_without_lost_reducers_which_return(served: Served) -> None:
    with ExitStack() as closing:
        reduced = Reduced(served, closing, "float32", 2)
        groups = reduced.groups
        average_all(groups, values(0))
        for number in (0, 1):  # After the second loss, the groups average without reducers.
            reduced.reducers[number].close()
            average_all(groups, values(1 + number))
        for number in (0, 1):
            reduced.start_reducer(number)
        average_all(groups, values(3))
        sent = groups[0].average.traffic()[0]
        average_all(groups, values(4))
        assert groups[0].average.traffic()[0] - sent == pytest.approx(4 * SIZE, rel=0.05), "the reducers are back"
        expected = -sum(sum(values(number)) / 3 for number in range(5))
        for each in groups:
            assert each.outcomes == [Outcome.AVERAGED] * 5
            assert (each.outer.theta[0] - expected).abs().max() < 1e-5
            assert torch.equal(each.outer.theta[0], groups[0].outer.theta[0])


def test_a_lost_group_is_left_out_and_one_that_stopped_postpones_the_round_once(served: Served) -> None:
    with ExitStack() as closing:
        groups = Reduced(served, closing, "float32", 2).groups
        groups[2].close()
        at_once(*(lambda each=each: each.take_part(1.0, 1.0) for each in groups[:2]))
        groups[1].close(has_stopped=True)
        groups[0].take_part(1.0, 1.0)
        groups[0].take_part(1.0, 1.0)
        assert groups[0].outcomes == [Outcome.AVERAGED, Outcome.POSTPONED, Outcome.AVERAGED]
        assert (groups[0].outer.theta[0] + 2.0).abs().max() < 1e-5


def test_a_reducer_that_the_groups_consider_lost_announces_itself_again(served: Served) -> None:
    with ExitStack() as closing:
        reduced = Reduced(served, closing, "float32", 1)
        before = reduced.reducers[0].process
        average_all(reduced.groups, values())
        assert not reduced.attendances[0].look()
        assert reduced.reducers[0].process == before
        state = reduced.groups[0].average._state
        assert state is not None
        reduced.groups[0].average._replace(state, state.without([before], is_postponed=False))
        reduced.attendances[0].look()
        assert reduced.reducers[0].process != before
        average_all(reduced.groups, values())
        at_once(*(lambda each=each: each.take_part(0.0, 0.0, has_finished=True) for each in reduced.groups))
        assert reduced.attendances[0].look(), "training has ended"


def test_errors_of_averages_are_saved_by_the_chiefs_group_and_given_to_other_reducers(served: Served) -> None:
    with ExitStack() as closing:
        groups = Reduced(served, closing, "int4", 2).groups
        for number in range(2):
            average_all(groups, values(number))
        states = [{**each.wire.state(), "average_errors": each.average.average_errors()} for each in groups]
        before = groups[0].outer.theta[0].clone()
        average_all(groups, values(2))
        expected = groups[0].outer.theta[0] - before
    with ExitStack() as closing:
        groups = Reduced(served, closing, "int4", 3).groups
        for each, state in zip(groups, states, strict=True):
            each.wire.load(state)
        average_all(groups, values(2))
        assert torch.allclose(groups[0].outer.theta[0], expected, rtol=0, atol=1e-6)

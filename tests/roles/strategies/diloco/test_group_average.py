"""Tests of averaging worker groups in one process, with real sockets, a join store, and a thread per group."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
import torch

from tests.roles.join_stores import KEY, Served, serve_in_a_process
from tests.roles.strategies.hogwild.worker_groups import at_once, peers_of
from torchyard_roles.coordination.join_store_client import JoinStore
from torchyard_roles.exchange import tensor_connection
from torchyard_roles.exchange.chunk_staging import PackedTensors
from torchyard_roles.strategies.diloco.group_average import GroupAverage, Outcome
from torchyard_roles.strategies.diloco.outer_step import OuterParameters, flats_of
from torchyard_roles.strategies.diloco.round_state import Announcement, RoundState

pytestmark = pytest.mark.train
SIZE = 300_001


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    store = serve_in_a_process()
    yield store
    store.end()


class Averaged:
    """A group whose model is a single tensor."""

    def __init__(self, group: int, peers: list[tensor_connection.Peer], served: Served, size: int) -> None:
        self.values = torch.full((size,), float(group))
        self.outer = OuterParameters(flats_of([self.values], []))
        self.store = JoinStore.connect(served.address, KEY, peers[group].name, group)
        listener = tensor_connection.listen_at(peers[group])
        self.average = GroupAverage(
            group, len(peers), peers[group], listener, KEY, self.store, self.outer, PackedTensors(()), host_wait_s=20
        )
        self.outcomes: list[Outcome] = []

    def start(self) -> None:
        if self.average.start(-1, "") is Outcome.KEPT:
            self.outer.begin()

    def take_part(self, difference: float, weight: float, *, has_finished: bool = False) -> None:
        differences = [torch.full((self.values.numel(),), difference)]
        outcome = self.average.average(differences, weight, has_finished=has_finished)
        self.outcomes.append(outcome)
        if outcome is Outcome.AVERAGED:
            self.outer.step(differences, 1.0, 0.0)

    def close(self, *, has_stopped: bool = False) -> None:
        self.average.close(has_stopped=has_stopped)
        self.store.close()


@pytest.fixture
def groups(served: Served) -> Iterator[list[Averaged]]:
    with ExitStack() as closing:
        cleaner = JoinStore.connect(served.address, KEY, "test", None)
        closing.callback(cleaner.close)
        for key in ("state", *(f"{kind}/{group}" for kind in ("here", "stopped") for group in range(3))):
            cleaner.delete(f"diloco/{key}")
        for epoch in range(10):
            cleaner.delete(f"diloco/done/{epoch}")
        peers = peers_of(3)
        made = [Averaged(group, peers, served, SIZE) for group in range(3)]
        for each in made:
            closing.callback(each.close)
        at_once(*(each.start for each in made))
        yield made


def test_all_groups_start_with_the_chiefs_parameters_and_apply_the_weighted_average(groups: list[Averaged]) -> None:
    assert all(not each.outer.theta[0].any() for each in groups)
    at_once(*(lambda each=each, at=at: each.take_part(float(at), at + 1.0) for at, each in enumerate(groups)))
    expected = -(0.0 * 1 + 1.0 * 2 + 2.0 * 3) / 6
    for each in groups:
        assert each.outcomes == [Outcome.AVERAGED]
        assert (each.outer.theta[0] - expected).abs().max() < 1e-5
        assert torch.equal(each.outer.theta[0], groups[0].outer.theta[0])


def test_a_round_sends_the_bytes_of_the_formula(groups: list[Averaged]) -> None:
    before = [each.average.traffic() for each in groups]
    rounds = 3
    for _ in range(rounds):
        at_once(*(lambda each=each: each.take_part(1.0, 1.0) for each in groups))
    formula = rounds * 2 * (4 * SIZE) * 2 / 3
    for each, (sent, received) in zip(groups, before, strict=True):
        now = each.average.traffic()
        assert now[0] - sent == pytest.approx(formula, rel=0.05)
        assert now[1] - received == pytest.approx(formula, rel=0.05)


def test_a_lost_group_is_left_out_and_one_that_stopped_postpones_the_round_once(groups: list[Averaged]) -> None:
    groups[2].close()
    at_once(*(lambda each=each: each.take_part(1.0, 1.0) for each in groups[:2]))
    groups[1].close(has_stopped=True)
    groups[0].take_part(1.0, 1.0)
    groups[0].take_part(1.0, 1.0)
    assert groups[0].outcomes == [Outcome.AVERAGED, Outcome.POSTPONED, Outcome.AVERAGED]
    assert (groups[0].outer.theta[0] + 2.0).abs().max() < 1e-5


def test_training_ends_when_all_groups_have_finished(groups: list[Averaged]) -> None:
    at_once(*(lambda each=each, at=at: each.take_part(1.0, 1.0, has_finished=at < 2) for at, each in enumerate(groups)))
    assert not any(each.average.has_ended for each in groups)
    at_once(*(lambda each=each: each.take_part(0.0, 0.0, has_finished=True) for each in groups))
    assert all(each.average.has_ended for each in groups)
    assert (groups[0].outer.theta[0] + 1.0).abs().max() < 1e-5


def test_a_state_in_the_store_is_the_same_after_reading_it() -> None:
    members = {group: Announcement(f"p{group}", f"worker-{group}", "10.0.0.1", 5, -1, "") for group in (2, 0)}
    state = RoundState(3, 1, "ab", members, 0, (0,), dropped=("p9",))
    for each in (state, state.without([2], is_postponed=True), state.after_round({1: members[2]}, has_finished=True)):
        assert RoundState.decoded(each.encoded()) == each
        assert RoundState.decoded(each.encoded()).encoded() == each.encoded()

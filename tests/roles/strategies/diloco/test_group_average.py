"""Tests of averaging worker groups, in one process with real sockets, a join store, and one thread per group."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest
import torch

from tests.roles.join_stores import KEY, Served, serve_in_a_process
from tests.roles.strategies.hogwild.worker_groups import at_once, peers_of
from tests.waiting import wait_until
from torchyard_roles.coordination.join_store_client import JoinStore
from torchyard_roles.exchange import tensor_connection
from torchyard_roles.exchange.chunk_staging import PackedTensors
from torchyard_roles.exchange.quantization import LARGEST, WireCodec
from torchyard_roles.strategies.diloco.error_feedback import ErrorFeedbackCodec
from torchyard_roles.strategies.diloco.group_average import GroupAverage, Outcome
from torchyard_roles.strategies.diloco.outer_step import OuterParameters, flats_of
from torchyard_roles.strategies.diloco.round_state import HERE, Announcement, RoundState

pytestmark = pytest.mark.train
SIZE = 300_001


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    store = serve_in_a_process()
    yield store
    store.end()


class Averaged:
    """A group whose model is a single tensor."""

    def __init__(
        self,
        group: int,
        peers: list[tensor_connection.Peer],
        served: Served,
        size: int,
        wire: str = "float32",
        reducers: int = 0,
        start_wait_s: float | None = None,
    ) -> None:
        self.values = torch.full((size,), float(group))
        self.outer = OuterParameters(flats_of([self.values], []))
        self.store = JoinStore.connect(served.address, KEY, peers[group].name, group)
        listener = tensor_connection.listen_at(peers[group])
        self.wire = encoding = ErrorFeedbackCodec(WireCodec(wire), self.outer.flats, has_feedback=True)
        self.average = GroupAverage(
            group,
            len(peers),
            peers[group],
            listener,
            KEY,
            self.store,
            self.outer,
            PackedTensors(()),
            encoding,
            reducers=reducers,
            host_wait_s=20,
            start_wait_s=start_wait_s,
        )
        self.outcomes: list[Outcome] = []

    def start(self) -> None:
        if self.average.start(-1, "") is Outcome.KEPT:
            self.outer.begin()

    def take_part(self, difference: float, weight: float, *, has_finished: bool = False) -> None:
        self.take_part_with(torch.full((self.values.numel(),), difference), weight, has_finished=has_finished)

    def take_part_with(self, difference: torch.Tensor, weight: float, *, has_finished: bool = False) -> None:
        differences = [difference.clone()]
        outcome = self.average.average(differences, weight, has_finished=has_finished)
        self.outcomes.append(outcome)
        if outcome is Outcome.AVERAGED:
            self.outer.step(differences, 1.0, 0.0)

    def close(self, *, has_stopped: bool = False) -> None:
        self.average.close(has_stopped=has_stopped)
        self.store.close()


def average_all(groups: list[Averaged], differences: list[torch.Tensor]) -> None:
    pairs = zip(groups, differences, strict=True)
    at_once(*(lambda each=each, own=own: each.take_part_with(own, 1.0) for each, own in pairs))


def clean(served: Served) -> None:
    """Deletes the rounds of an earlier test from the store."""
    with closing(JoinStore.connect(served.address, KEY, "test", None)) as store:
        for key in ("state", *(f"{kind}/{at}" for kind in ("here", "stopped", "reducer") for at in range(3))):
            store.delete(f"diloco/{key}")
        for epoch in range(20):
            store.delete(f"diloco/done/{epoch}")


@pytest.fixture
def groups(served: Served, request: pytest.FixtureRequest) -> Iterator[list[Averaged]]:
    """Three groups, whose wire encoding is the fixture's parameter, or float32 if there is no parameter."""
    with ExitStack() as stack:
        clean(served)
        peers = peers_of(3)
        made = [Averaged(group, peers, served, SIZE, getattr(request, "param", "float32")) for group in range(3)]
        for each in made:
            stack.callback(each.close)
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


@pytest.mark.parametrize("groups", ["bfloat16", "int8", "int4"], indirect=True)
def test_groups_on_a_quantised_wire_stay_equal_and_send_its_bytes(
    groups: list[Averaged], request: pytest.FixtureRequest
) -> None:
    wire = request.node.callspec.params["groups"]
    before = [each.average.traffic() for each in groups]
    generator = torch.Generator().manual_seed(3)
    values = [torch.randn(SIZE, generator=generator) for _ in groups]
    rounds = 4
    for _ in range(rounds):
        average_all(groups, values)
    largest = LARGEST.get(wire, 2**7)
    for each, (sent, _) in zip(groups, before, strict=True):
        assert torch.equal(each.outer.theta[0], groups[0].outer.theta[0])
        # Each round corrects the errors of the previous one, so the error after four rounds is at most that of encoding
        # one difference and one average.
        bound = 2 * 2 * max(float(value.abs().max()) for value in values) / (2 * largest)
        assert (each.outer.theta[0] + rounds * sum(values) / 3).abs().max() <= bound
        formula = rounds * 2 * WireCodec(wire).size(SIZE) * 2 / 3
        assert each.average.traffic()[0] - sent == pytest.approx(formula, rel=0.05)


@pytest.mark.parametrize("groups", ["int8"], indirect=True)
def test_groups_on_a_quantised_wire_stay_equal_when_one_is_lost(groups: list[Averaged]) -> None:
    generator = torch.Generator().manual_seed(3)
    values = [torch.randn(SIZE, generator=generator) for _ in groups]
    average_all(groups, values)
    groups[2].close()
    for _ in range(2):
        average_all(groups[:2], values[:2])
    assert groups[0].outcomes == [Outcome.AVERAGED] * 3
    assert torch.equal(groups[0].outer.theta[0], groups[1].outer.theta[0])
    expected = sum(values) / 3 + values[0] + values[1]
    assert (groups[0].outer.theta[0] + expected).abs().max() < 0.2


def test_connections_stay_open_between_rounds(groups: list[Averaged], monkeypatch: pytest.MonkeyPatch) -> None:
    at_once(*(lambda each=each: each.take_part(1.0, 1.0) for each in groups))

    def no_connection(*_: object) -> None:
        raise AssertionError("a new connection")

    monkeypatch.setattr(tensor_connection.Connection, "connect", no_connection)
    for _ in range(3):
        at_once(*(lambda each=each: each.take_part(1.0, 1.0) for each in groups))
    assert all((each.outer.theta[0] + 4.0).abs().max() < 1e-5 for each in groups)


def test_the_divergence_is_the_distance_of_the_groups_from_their_average(groups: list[Averaged]) -> None:
    generator = torch.Generator().manual_seed(4)
    values = [torch.randn(SIZE, generator=generator) for _ in groups]
    average_all(groups, values)
    mean = sum(values) / 3
    distance = sum(float((each - mean).square().sum()) for each in values)
    expected = (distance / sum(float(each.square().sum()) for each in values)) ** 0.5
    assert [each.average.divergence for each in groups] == pytest.approx([expected] * 3, rel=1e-3)
    assert [each.average.members for each in groups] == [3] * 3
    average_all(groups, [values[0]] * 3)
    assert max(each.average.divergence for each in groups) < 0.01


def test_a_lost_group_is_left_out_and_one_that_stopped_postpones_the_round_once(groups: list[Averaged]) -> None:
    groups[2].close()
    at_once(*(lambda each=each: each.take_part(1.0, 1.0) for each in groups[:2]))
    groups[1].close(has_stopped=True)
    groups[0].take_part(1.0, 1.0)
    groups[0].take_part(1.0, 1.0)
    assert groups[0].outcomes == [Outcome.AVERAGED, Outcome.POSTPONED, Outcome.AVERAGED]
    assert (groups[0].outer.theta[0] + 2.0).abs().max() < 1e-5


def test_a_group_that_was_restarted_between_two_rounds_is_left_out_of_the_next_one_and_then_returns(
    groups: list[Averaged], served: Served
) -> None:
    at_once(*(lambda each=each: each.take_part(1.0, 1.0) for each in groups))
    groups[2].close()
    peers = [each.average._own for each in groups]
    groups[2] = again = Averaged(2, peers, served, SIZE)
    own = again.average

    def has_announced_itself() -> bool:
        return bool(own._process) and own._process.encode() in (groups[0].store.try_get(f"{HERE}/2") or b"")

    def others() -> None:
        wait_until(has_announced_itself)
        at_once(*(lambda each=each: each.take_part(1.0, 1.0) for each in groups[:2]))

    at_once(again.start, others)
    at_once(*(lambda each=each: each.take_part(1.0, 1.0) for each in groups))
    assert all((each.outer.theta[0] + 3.0).abs().max() < 1e-5 for each in groups)


def test_training_begins_without_a_group_that_has_not_started(served: Served) -> None:
    clean(served)
    with closing(Averaged(0, peers_of(2), served, SIZE, start_wait_s=0.2)) as chief:
        chief.start()
        chief.take_part(1.0, 1.0)
        assert chief.outcomes == [Outcome.AVERAGED]


def test_training_ends_when_all_groups_have_finished(groups: list[Averaged]) -> None:
    at_once(*(lambda each=each, at=at: each.take_part(1.0, 1.0, has_finished=at < 2) for at, each in enumerate(groups)))
    assert not any(each.average.has_ended for each in groups)
    at_once(*(lambda each=each: each.take_part(0.0, 0.0, has_finished=True) for each in groups))
    assert all(each.average.has_ended for each in groups)
    assert (groups[0].outer.theta[0] + 1.0).abs().max() < 1e-5


def test_a_state_in_the_store_is_the_same_after_reading_it() -> None:
    members = {group: Announcement(f"p{group}", f"worker-{group}", "10.0.0.1", 5, -1, "") for group in (2, 0)}
    state = RoundState(3, 1, "ab", members, 0, (0,), dropped=("p9",))
    for each in (
        state,
        state.without(["p2"], is_postponed=True),
        state.after_round({1: members[2]}, has_finished=True),
    ):
        assert RoundState.decoded(each.encoded()) == each
        assert RoundState.decoded(each.encoded()).encoded() == each.encoded()

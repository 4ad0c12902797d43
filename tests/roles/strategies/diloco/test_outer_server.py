"""Tests of DiLoCo's parameter servers in one process, by comparison with torch.optim.SGD for the same averages."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
import torch

from tests.roles.join_stores import Served, serve_in_a_process
from tests.roles.strategies.diloco.outer_servers import Group, Servers, serving
from tests.roles.strategies.hogwild.worker_groups import at_once
from tests.waiting import wait_until
from torchyard_roles.errors import ProtocolError, RolesError
from torchyard_roles.exchange.quantization import WireCodec
from torchyard_roles.strategies.diloco.group_average import Outcome

pytestmark = pytest.mark.train
SIZE = 1001
LR, MOMENTUM = 0.7, 0.9


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    store = serve_in_a_process()
    yield store
    store.end()


def started(servers: Servers, closing: ExitStack, count: int) -> list[Group]:
    groups = [servers.group(number, torch.full((SIZE,), float(number), dtype=torch.float64)) for number in range(count)]
    for group in groups:
        closing.callback(group.close)
    at_once(*(group.start for group in groups))
    return groups


class Definition:
    """The outer optimizer as DiLoCo defines it, computed in one process."""

    def __init__(self, start: torch.Tensor) -> None:
        self.theta = torch.nn.Parameter(start.clone())
        self._optimizer = torch.optim.SGD([self.theta], lr=LR, momentum=MOMENTUM, nesterov=True)

    def round(self, differences: Sequence[tuple[torch.Tensor, float]]) -> torch.Tensor:
        total = sum(weight for _, weight in differences)
        self.theta.grad = torch.stack([each * weight for each, weight in differences]).sum(dim=0) / total
        self._optimizer.step()
        return self.theta.detach().clone()


def moved(group: Group, seed: int, fragment: int = 0) -> torch.Tensor:
    """Changes the group's parameters, and returns the difference of the fragment that it pushes next."""
    step = torch.randn(SIZE, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    group.values.sub_(step)
    return group.outer.theta[fragment] - group.parts[fragment]


def assert_near(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert (found - expected).abs().max() < 1e-12


class QuantisedDefinition(Definition):
    """The definition with any wire encoding. The encoding error of a difference is added to the next difference. If the
    encoding is not exact, the changes of θ are sent instead of θ itself.
    """

    def __init__(self, start: torch.Tensor, wire: str, groups: int) -> None:
        super().__init__(start)
        self._codec = WireCodec(wire)
        self._errors = [torch.zeros_like(start) for _ in range(groups)]
        self.sent = start.clone()

    def round(self, differences: Sequence[tuple[torch.Tensor, float]]) -> torch.Tensor:
        pairs = zip(differences, self._errors, strict=True)
        coded = [(self._coded(each, error), weight) for (each, weight), error in pairs]
        theta = super().round(coded)
        if self._codec.is_exact:
            return theta
        self.sent += self._coded(theta - self.sent)
        return self.sent

    def _coded(self, values: torch.Tensor, error: torch.Tensor | None = None) -> torch.Tensor:
        return self._codec.decode(self._codec.encode(values, error), torch.empty_like(values))


@pytest.mark.parametrize("count", [1, 3])
def test_rounds_of_all_groups_equal_the_definition(served: Served, count: int) -> None:
    with ExitStack() as closing:
        groups = started(closing.enter_context(serving(served, count, 3)), closing, 3)
        assert all(not group.values.any() for group in groups), "all start with the chief's parameters"
        definition = Definition(groups[0].values)
        for number in range(4):
            differences = [(moved(group, 10 * number + group.number), 1.0 + group.number) for group in groups]
            at_once(*(lambda group=group: group.push(1.0 + group.number) for group in groups))
            expected = definition.round(differences)
            for group in groups:
                assert_near(group.values, expected)
                assert torch.equal(group.values, groups[0].values)


@pytest.mark.parametrize("wire", ["bfloat16", "int8", "int4"])
def test_a_quantised_wire_equals_its_definition_in_both_directions(served: Served, wire: str) -> None:
    with ExitStack() as closing:
        servers = closing.enter_context(serving(served, 1, 3, wire=wire))
        groups = started(servers, closing, 3)
        definition = QuantisedDefinition(groups[0].values, wire, 3)
        codec = WireCodec(wire)
        for number in range(6):
            before = [group.average.traffic() for group in groups]
            differences = [(moved(group, 10 * number + group.number), 1.0 + group.number) for group in groups]
            at_once(*(lambda group=group: group.push(1.0 + group.number) for group in groups))
            expected = definition.round(differences)
            for group, (sent, received) in zip(groups, before, strict=True):
                assert_near(group.values, expected)
                assert torch.equal(group.values, groups[0].values)
                now = group.average.traffic()
                # Headers take less than 400 bytes per round.
                assert 0 <= now[0] - sent - codec.size(SIZE) < 400
                assert 0 <= now[1] - received - codec.size(SIZE) < 400


@pytest.mark.parametrize("wire", ["float32", "int8"])
def test_fragments_are_averaged_in_turn_and_send_the_bytes_of_the_whole(served: Served, wire: str) -> None:
    with ExitStack() as closing:
        servers = closing.enter_context(serving(served, 2, 3, wire=wire, fragments=2))
        groups = started(servers, closing, 3)
        definitions = [QuantisedDefinition(part, wire, 3) for part in groups[0].parts]
        before = groups[0].average.traffic()
        for number in range(8):
            fragment = number % 2
            differences = [(moved(group, 10 * number + group.number, fragment), 1.0 + group.number) for group in groups]
            kept = groups[0].parts[1 - fragment].clone()
            at_once(*(partial(group.push, 1.0 + group.number, fragment=fragment) for group in groups))
            expected = definitions[fragment].round(differences)
            for group in groups:
                assert_near(group.parts[fragment], expected)
                assert torch.equal(group.parts[fragment], groups[0].parts[fragment])
                assert group.outer.round == number + 1
            assert torch.equal(groups[0].parts[1 - fragment], kept)
        codec = WireCodec(wire)
        for sent, received in zip(before, groups[0].average.traffic(), strict=True):
            extra = received - sent - 4 * codec.size(SIZE, torch.float64)
            assert 0 <= extra < 8 * 2 * 400, "headers are smaller than 400 bytes per exchange with a server"


def test_a_late_difference_of_a_fragment_counts_in_the_next_round_of_this_fragment(served: Served) -> None:
    with ExitStack() as closing:
        groups = started(closing.enter_context(serving(served, 2, 3, quorum=2, fragments=2)), closing, 3)
        definitions = [Definition(part) for part in groups[0].parts]
        fast, slow = groups[:2], groups[2]
        late = moved(slow, 100)
        found: list[torch.Tensor] = []
        for number, fragment in enumerate((0, 1, 0)):
            differences = [(moved(group, 10 * number + group.number, fragment), 1.0) for group in fast]
            if number == 2:
                slow.push(3.0, fragment=0)
                assert_near(slow.parts[0], found[0])
                differences.append((late, 3.0))
            at_once(*(partial(group.push, fragment=fragment) for group in fast))
            found.append(definitions[fragment].round(differences))
            assert_near(fast[0].parts[fragment], found[-1])
        assert slow.average.bases == [1, 0]


def test_no_outer_step_is_taken_if_no_group_has_trained(served: Served) -> None:
    with ExitStack() as closing:
        groups = started(closing.enter_context(serving(served, 1, 2)), closing, 2)
        for group in groups:
            moved(group, group.number)
        at_once(*(group.push for group in groups))
        expected = groups[0].values.clone()
        at_once(*(lambda group=group: group.push(0.0, has_finished=True) for group in groups))
        assert torch.equal(groups[0].values, expected)


def test_a_group_behind_by_more_rounds_than_are_kept_receives_all_parameters(served: Served) -> None:
    with ExitStack() as closing:
        servers = closing.enter_context(serving(served, 2, 3, quorum=2, wire="int8"))
        groups = started(servers, closing, 3)
        fast, slow = groups[:2], groups[2]
        # Servers keep only as many changes as take fewer bytes than the float64 parameters: those of seven rounds.
        for rounds in (2, 9):
            received = slow.average.traffic()[1]
            moved(slow, rounds)
            for number in range(rounds):
                for group in fast:
                    moved(group, 100 * rounds + 10 * number + group.number)
                at_once(*(lambda group=group: group.push() for group in fast))
            slow.push()
            assert torch.equal(slow.values, fast[0].values)
            received = slow.average.traffic()[1] - received
            whole = SIZE * slow.values.element_size()
            assert (received < 0.5 * whole) if rounds == 2 else (received > whole)


def test_a_late_difference_counts_exactly_once_in_the_next_round(served: Served) -> None:
    with ExitStack() as closing:
        groups = started(closing.enter_context(serving(served, 2, 3, quorum=2)), closing, 3)
        definition = Definition(groups[0].values)
        fast, slow = groups[:2], groups[2]
        before = torch.empty(0)
        for number in range(3):
            late = moved(slow, 100 + number)
            if number % 2:  # A push that is repeated after a broken connection must change nothing.
                slow.average._drop(0)
            for step in range(2):
                differences = [(moved(group, 10 * number + 3 * step + group.number), 2.0) for group in fast]
                at_once(*(lambda group=group: group.push(2.0) for group in fast))
                if step == 0 and number:
                    # This round also averages the late difference of the previous iteration.
                    differences.append((before, 3.0))
                expected = definition.round(differences)
                assert_near(fast[0].values, expected)
                assert_near(fast[1].values, expected)
            began = time.monotonic()
            slow.push(3.0)
            assert time.monotonic() - began < 1.0, "it waits for no round"
            assert_near(slow.values, expected)
            before = late


def test_a_quorum_waits_for_the_grace_period_and_no_longer_than_for_all(served: Served) -> None:
    with ExitStack() as closing:
        groups = started(closing.enter_context(serving(served, 1, 3, quorum=2, grace_s=1.0)), closing, 3)
        began = time.monotonic()
        at_once(*(lambda group=group: group.push() for group in groups))
        assert time.monotonic() - began < 0.8
        began = time.monotonic()
        at_once(*(lambda group=group: group.push() for group in groups[:2]))
        assert 0.95 < time.monotonic() - began < 3


def test_a_lost_group_is_left_out_and_returns_at_the_next_round(served: Served) -> None:
    with ExitStack() as closing:
        servers = closing.enter_context(serving(served, 2, 3))
        groups = started(servers, closing, 3)
        groups[2].close()
        moved(groups[0], 1)
        at_once(*(lambda group=group: group.push() for group in groups[:2]))
        back = servers.group(2, torch.zeros(SIZE, dtype=torch.float64))
        closing.callback(back.close)
        outcomes: list[Outcome] = []

        def others() -> None:
            wait_until(lambda: servers.servers[0]._rounds.live == 3)
            time.sleep(0.2)
            assert not outcomes, "it waits for the end of the round"
            at_once(*(lambda group=group: group.push() for group in groups[:2]))

        at_once(lambda: outcomes.append(back.start()), others)
        assert outcomes == [Outcome.REPLACED]
        assert torch.equal(back.values, groups[0].values)
        assert back.outer.round == 2
        at_once(*(lambda group=group: group.push() for group in (*groups[:2], back)))
        assert back.outer.round == groups[0].outer.round == 3


def test_training_ends_with_the_slowest_group_and_all_have_equal_parameters(served: Served) -> None:
    with ExitStack() as closing:
        servers = closing.enter_context(serving(served, 2, 3, quorum=2))
        groups = started(servers, closing, 3)
        definition = Definition(groups[0].values)
        differences = [(moved(group, group.number), 1.0) for group in groups]

        def slow() -> None:
            wait_until(lambda: servers.servers[0]._rounds.rounds == [1])
            groups[2].push(has_finished=True)

        at_once(*(lambda group=group: group.push(has_finished=True) for group in groups[:2]), slow)
        definition.round(differences[:2])
        expected = definition.round(differences[2:])
        for group in groups:
            assert group.average.has_ended
            assert_near(group.values, expected)
            group.close()
        assert servers.have_ended()
        late = servers.group(1, torch.zeros(SIZE, dtype=torch.float64))
        closing.callback(late.close)
        assert late.start() is Outcome.ENDED


def test_a_group_that_stops_postpones_the_round_of_the_others_once(served: Served) -> None:
    with ExitStack() as closing:
        groups = started(closing.enter_context(serving(served, 1, 2)), closing, 2)
        groups[1].close(has_stopped=True)
        groups[0].push()
        groups[0].push()
        assert groups[0].outcomes == [Outcome.POSTPONED, Outcome.AVERAGED]


def test_the_servers_resume_with_the_late_differences_of_the_open_round(served: Served, tmp_path: Path) -> None:
    with ExitStack() as closing:
        servers = closing.enter_context(serving(served, 2, 3, tmp_path, quorum=2))
        groups = started(servers, closing, 3)
        definition = Definition(groups[0].values)
        first = [(moved(group, group.number), 1.0) for group in groups]
        at_once(*(lambda group=group: group.push() for group in groups[:2]))
        groups[2].push()
        groups[0].average.save(7)
        definition.round(first[:2])
        lineage = groups[0].average.lineage
        states = [(group.outer.round, group.outer.state()) for group in groups]
    with ExitStack() as closing:
        servers = closing.enter_context(serving(served, 2, 3, tmp_path, quorum=2))
        groups = []
        for number, (round_, state) in enumerate(states):
            part = {**state, "round": round_, "lineage": lineage, "bases": [round_]}
            groups.append(servers.group(number, state["theta"][0].clone(), restored=part, restored_step=7))
            closing.callback(groups[-1].close)
        outcomes: list[Outcome] = []
        at_once(*(lambda group=group: outcomes.append(group.start(1, lineage)) for group in groups))
        assert outcomes == [Outcome.KEPT] * 3
        for group, (round_, state) in zip(groups, states, strict=True):
            group.outer.load(state["theta"], [], round_)
        second = [(moved(group, 20 + group.number), 1.0) for group in groups[:2]]
        at_once(*(lambda group=group: group.push() for group in groups[:2]))
        assert_near(groups[0].values, definition.round([*second, first[2]]))


def test_a_part_whose_difference_was_pushed_is_replaced(served: Served, tmp_path: Path) -> None:
    with ExitStack() as closing:
        servers = closing.enter_context(serving(served, 1, 2))
        groups = started(servers, closing, 2)
        at_once(*(group.push for group in groups))
        groups[1].close()
        at_once(groups[0].push)
        back = servers.group(1, torch.zeros(SIZE, dtype=torch.float64))
        closing.callback(back.close)
        outcomes: list[Outcome] = []
        lineage = groups[0].average.lineage
        at_once(lambda: outcomes.append(back.start(0, lineage)), lambda: (time.sleep(0.3), groups[0].push()))
        assert outcomes == [Outcome.REPLACED]


def test_another_model_is_refused_with_a_sentence(served: Served) -> None:
    with ExitStack() as closing:
        servers = closing.enter_context(serving(served, 1, 2))
        chief = servers.group(0, torch.zeros(SIZE))
        other = servers.group(1, torch.zeros(SIZE + 1))
        closing.callback(chief.close)
        closing.callback(other.close)
        chief.start()
        with pytest.raises(ProtocolError, match="The model of worker-1 differs"):
            other.start()


def test_the_loss_of_a_server_ends_the_others_with_a_sentence(served: Served) -> None:
    with ExitStack() as closing:
        servers = closing.enter_context(serving(served, 2, 2))
        groups = started(servers, closing, 2)
        problems: list[str] = []

        def push() -> None:
            try:
                groups[0].push()
            except RolesError as error:
                problems.append(str(error))
                groups[0].close()

        at_once(push, lambda: (time.sleep(0.3), servers.servers[1].stop()))
        assert "ps-1 on 127.0.0.1 is gone" in problems[0]
        assert "All groups start again from their checkpoints" in problems[0]
        groups[1].close()
        assert servers.have_ended()


def test_a_group_at_a_quarter_of_the_speed_does_not_slow_the_others(served: Served) -> None:
    """The others complete four rounds while this group computes. `benchmarks.training.slow_group` measures the
    throughput.
    """
    with ExitStack() as closing:
        groups = started(closing.enter_context(serving(served, 2, 4, quorum=3)), closing, 4)
        fast, slow = groups[:3], groups[3]
        for turn in range(2):
            for number in range(4):
                for group in fast:
                    moved(group, 100 * turn + 10 * number + group.number)
                at_once(*(group.push for group in fast))
            moved(slow, turn)
            slow.push()
            assert torch.equal(slow.values, fast[0].values)
        assert [group.outcomes.count(Outcome.AVERAGED) for group in fast] == [8, 8, 8]

"""Tests of staleness and stability under downpour, with real workers that take turns using a real server."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from tests.roles.strategies.parameter_server.served_run import Run, descend
from tests.roles.strategies.parameter_server.test_sandblaster import batches, momentum, network
from torchyard_roles.strategies.parameter_server.sandblaster_downpour import ParameterServerStrategy

pytestmark = pytest.mark.train

CPU = torch.device("cpu")


def bound(staleness: int) -> float:
    """Returns the largest product of learning rate and curvature at which plain SGD converges."""
    return 2 * math.sin(math.pi / (2 * (2 * staleness + 1)))


@pytest.mark.parametrize(("staleness", "documented"), [(0, 2.0), (1, 1.0), (3, 0.445), (7, 0.209)])
def test_the_documented_table(staleness: int, documented: float) -> None:
    assert bound(staleness) == pytest.approx(documented, abs=5e-4)


@pytest.mark.parametrize("overlaps", [True, False], ids=["overlapped", "blocking"])
@pytest.mark.parametrize("groups", [2, 3, 4])
def test_round_robin_downpour_converges_exactly_below_its_bound(groups: int, overlaps: bool) -> None:
    """One of two independent parameters is 2% below the bound and converges; the other one is 2% above it and diverges.

    With N groups in turn, a gradient is 2N − 1 versions old if the exchange overlaps the next step, and N − 1 if each
    step waits for the exchange.
    """
    staleness = 2 * groups - 1 if overlaps else groups - 1
    curvatures = torch.tensor([0.98, 1.02], dtype=torch.float64) * bound(staleness)
    run = Run(groups, 1, groups, "downpour", options={"max_staleness": staleness})
    values: list[torch.Tensor] = []
    # Half of these pushes divide one value and multiply the other by more than 2.5.
    pushes = 130 * (staleness + 1)
    with run.serving():
        crew: list[tuple[ParameterServerStrategy, nn.Module, torch.optim.Optimizer]] = []
        for rank in range(groups):
            served = ParameterServerStrategy(run.environment(rank), chunk_bytes=256, overlaps=overlaps)
            served.start(CPU)
            model = nn.ParameterList([torch.ones(2, dtype=torch.float64)])
            crew.append((served, *served.distribute(model, torch.optim.SGD(model.parameters(), lr=1.0), CPU)))
        for turn in range(pushes):
            served, model, optimizer = crew[turn % groups]
            model[0].grad = curvatures * model[0].detach()
            optimizer.step()
            if overlaps:
                served.pairs[0]._exchange.wait()  # The next worker continues only after the server has stepped.
            values.append(model[0].detach().clone())
            if turn >= 2 * groups:
                assert served.statistics()["staleness"] == staleness
        server = run.servers_now[0].pairs[0].shard
        assert server.version == pushes
        assert server.ledger.staleness == staleness
        assert server.ledger.counts.dropped == 0
        for served, _, _ in crew:
            served.abandon()
    early = torch.stack(values[pushes // 4 : pushes // 2]).abs().amax(0)
    late = torch.stack(values[-pushes // 4 :]).abs().amax(0)
    assert late[0] < early[0] / 2
    assert late[1] > early[1] * 2


def test_one_group_is_never_stale() -> None:
    run = Run(1, 1, 1, "downpour", options={"max_staleness": 0})
    with run.serving():
        served, model = run.worker(0), network()
        model, optimizer = served.distribute(model, momentum(model), CPU)
        descend(model, optimizer, batches(5, 4))
        assert served.statistics()["staleness"] == 0
        assert run.servers_now[0].pairs[0].shard.version == 5
        served.leave()


def test_a_push_of_several_steps_is_as_stale_as_the_oldest_of_its_gradients() -> None:
    """Group 0 pushes the sum of 3 gradients computed from its first parameters, after group 1 has pushed 4 times."""
    run = Run(2, 1, 2, "downpour", options={"push_every": 3, "pull_every": 1})
    with run.serving():
        crew = []
        for rank in range(2):
            served, model = run.worker(rank), network()
            crew.append((served, *served.distribute(model, momentum(model), CPU)))
        (slow, model, optimizer), (fast, its, other) = crew
        descend(model, optimizer, batches(1, 4))
        descend(its, other, batches(12, 4))
        fast.pairs[0]._exchange.wait()
        assert run.servers_now[0].pairs[0].shard.version == 4
        descend(model, optimizer, batches(2, 4))
        slow.pairs[0]._exchange.wait()
        assert slow.statistics()["staleness"] == 4
        for served, _, _ in crew:
            served.abandon()

"""Tests of cluster.clip_gradients() with parameter servers, which clip by the norm of the mean gradient over all
shards.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.roles.strategies.parameter_server.served_run import SEEDING, Run, difference
from tests.roles.strategies.parameter_server.test_sandblaster import batches, momentum, network
from torchyard_roles.errors import NotFinite, UsageProblem
from torchyard_roles.exchange.parameter_layout import Entry, Layout
from torchyard_roles.strategies.parameter_server.chunk_state import Delivery
from torchyard_roles.strategies.parameter_server.push_acceptance import Push, Rules
from torchyard_roles.strategies.parameter_server.shard import Shard

pytestmark = pytest.mark.train

CPU = torch.device("cpu")
MAX_NORM = 0.9


def descend(
    model: nn.Module, optimizer: torch.optim.Optimizer, data: list, clip: object, part: int, parts: int
) -> list:
    norms = []
    for inputs, targets in data:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs[part::parts]), targets[part::parts]).backward()
        norms.append(float(clip(list(model.parameters()), MAX_NORM)))
        optimizer.step()
    return norms


def alone(data: list) -> tuple[nn.Module, list[float]]:
    model = network()
    return model, descend(model, momentum(model), data, nn.utils.clip_grad_norm_, 0, 1)


@pytest.mark.parametrize(
    ("strategy", "options"),
    [("sandblaster", {}), ("downpour", {}), ("sandblaster", {"reduction_order": "arrival"})],
)
def test_clipped_steps_equal_those_of_one_process_on_the_whole_batch(strategy: str, options: dict) -> None:
    data = batches(30, 9)
    run = Run(3, 2, strategy=strategy, options=options)

    def act(rank: int) -> tuple[nn.Module, list[float]]:
        served = run.worker(rank)
        with SEEDING:
            model = network()
        model, optimizer = served.distribute(model, momentum(model), CPU)
        norms = descend(model, optimizer, data, served.clip_gradients, rank, 3)
        served.leave()
        return model, norms

    with run.serving():
        outcomes = run.on_workers(act)
        assert run.ended()
        assert {server.pairs[0].shard.version for server in run.servers_now} == {30}
    expected, norms = alone(data)
    assert min(norms) < MAX_NORM < max(norms)  # Some gradients are clipped, and others are not.
    for model, mine in outcomes:
        assert difference(model.state_dict(), expected.state_dict()) < 1e-12
        assert mine == pytest.approx(norms, rel=1e-6)  # The norm is returned in single precision.
    assert all(mine == outcomes[0][1] for _, mine in outcomes)


def test_groups_clip_each_for_itself_while_their_exchange_is_overlapped() -> None:
    """Group 1 pushes nothing. Group 0 installs the result of its first step in its second step."""
    run = Run(4, 2, 2, "downpour")
    data = batches(2, 8)

    def act(rank: int) -> tuple[nn.Module, list[float]]:
        served = run.worker(rank)
        with SEEDING:
            model = network()
        model, optimizer = served.distribute(model, momentum(model), CPU)
        norms = [] if rank > 1 else descend(model, optimizer, data[:1], served.clip_gradients, rank, 2)
        served.leave()
        return model, norms

    with run.serving():
        (model, norms), *_ = run.on_workers(act)
        assert run.ended()
    expected, expected_norms = alone(data[:1])
    assert difference(model.state_dict(), expected.state_dict()) < 1e-12
    assert norms == pytest.approx(expected_norms, rel=1e-6)


def test_it_is_refused_with_backup_workers() -> None:
    run = Run(2, 1, options={"backup_workers": 1})
    with run.serving():
        served = run.worker(0)
        model = network()
        model, _ = served.distribute(model, momentum(model), CPU)
        with pytest.raises(UsageProblem, match=r"cannot be used with strategy\.backup_workers: .* Set backup_workers"):
            served.clip_gradients(list(model.parameters()), 1.0)
        served.leave()


def test_each_member_gets_what_was_held_when_it_asks_for_it() -> None:
    layout = Layout((Entry("weight", (4,), "float64", 0),))
    (chunk,) = layout.chunks(1)
    shard = Shard(layout, [chunk], "SGD", [{"lr": 1.0}], Rules())

    def push(rank: int, value: float) -> list[Delivery]:
        one = Push(group=0, rank=rank, generation=0, round=1, chunk=0, base=0, hold=True)
        return shard.push(one, torch.full((4,), value, dtype=torch.float64))

    def scale(rank: int, factor: float) -> list[tuple[int, str, list[float]]]:
        given = shard.scale(0, rank, 0, 1, 0, factor)
        return [(one.rank, one.header["outcome"], one.payload.tolist()) for one in given]

    for rank in range(2):
        shard.enter(0, rank, 2, 0)
    assert push(0, 1.0) == []
    assert [(one.rank, one.header["square"]) for one in push(1, 3.0)] == [(0, 16.0), (1, 16.0)]
    assert shard.version == 0
    assert scale(1, 0.5) == [(1, "accepted", [-1.0] * 4)]
    assert scale(0, 0.5) == [(0, "accepted", [-1.0] * 4)]
    assert shard.version == 1
    assert scale(0, 0.5) == []


@pytest.mark.parametrize("on_nan", ["fail", "skip"])
def test_gradients_that_are_not_finite_are_the_steps_matter(on_nan: str) -> None:
    run = Run(1, 2, options={"on_nan": on_nan})

    def act(rank: int) -> None:
        served = run.worker(rank)
        model = network()
        before = [parameter.detach().clone() for parameter in model.parameters()]
        model, optimizer = served.distribute(model, momentum(model), CPU)
        model(torch.full((2, 12), float("nan"), dtype=torch.float64)).sum().backward()
        assert served.clip_gradients(list(model.parameters()), 1.0).isnan()
        if on_nan == "fail":
            with pytest.raises(NotFinite, match=r"not finite, first in 0\.weight"):
                optimizer.step()
        else:
            optimizer.step()
            assert all(torch.equal(*pair) for pair in zip(before, model.parameters(), strict=True))
        served.leave()

    with run.serving():
        run.on_workers(act)


def test_it_is_called_once_a_step() -> None:
    run = Run(1, 1)

    def act(rank: int) -> None:
        served = run.worker(rank)
        model = network()
        model, optimizer = served.distribute(model, momentum(model), CPU)
        model(batches(1, 4)[0][0]).sum().backward()
        served.clip_gradients(list(model.parameters()), 1.0)
        with pytest.raises(UsageProblem, match="a second time before the optimizer's step"):
            served.clip_gradients(list(model.parameters()), 1.0)
        optimizer.step()
        served.leave()

    with run.serving():
        run.on_workers(act)

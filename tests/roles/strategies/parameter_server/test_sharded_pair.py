"""Tests of downpour with a sharded model, in one process: a worker group of one rank, and servers in threads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from tests.roles.strategies.parameter_server.served_run import SEEDING, Run, difference
from tests.roles.strategies.parameter_server.test_mixed_precision import descend as descend_scaled
from tests.roles.strategies.parameter_server.test_sandblaster import batches, network
from torchyard_roles.errors import EnvironmentProblem, PeerLost, UsageProblem
from torchyard_roles.peers import Peers, TrainerAddress
from torchyard_roles.strategies.parameter_server.sandblaster_downpour import ParameterServerStrategy
from torchyard_roles.strategies.parameter_server.sharded_downpour import FAILED, WAITS, ShardedDownpour
from torchyard_roles.strategies.registry import choose

pytestmark = pytest.mark.train

CPU = torch.device("cpu")
STEPS = 8
NORM = 0.3


@pytest.fixture(autouse=True)
def group() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def run_of(**options: Any) -> Run:
    return Run(1, 2, 1, "downpour", options={"shard": "all", **options})


def distributed(run: Run, model: nn.Module, optimizer: torch.optim.Optimizer) -> ShardedDownpour:
    strategy = ShardedDownpour(run.environment(0))
    strategy.start(CPU)
    strategy.prepare([model], [optimizer], CPU)
    strategy.distribute(model, optimizer, CPU)
    return strategy


def whole(model: nn.Module) -> dict[str, torch.Tensor]:
    """Returns a copy of the model's state with whole tensors."""
    return {
        name: (value.full_tensor() if hasattr(value, "full_tensor") else value).clone()
        for name, value in model.state_dict().items()
    }


def made(dtype: torch.dtype = torch.float64) -> nn.Module:
    with SEEDING:
        return network(dtype)


def gradients_of(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> list[torch.Tensor]:
    model.zero_grad()
    nn.functional.mse_loss(model(batch[0]), batch[1]).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), NORM)
    return [parameter.grad.clone() for parameter in model.parameters()]


def by_definition(data: list[tuple[torch.Tensor, torch.Tensor]], push_every: int, pull_every: int) -> nn.Module:
    """Simulates a server and a worker in one process. Between pulls, the worker uses its own optimizer."""
    server, worker = made(), made()
    of_server, of_worker = (torch.optim.AdamW(model.parameters(), lr=0.01) for model in (server, worker))
    pending = [torch.zeros_like(parameter) for parameter in server.parameters()]
    for step, batch in enumerate(data, 1):
        for each, gradient in zip(pending, gradients_of(worker, batch), strict=True):
            each += gradient
        if step % push_every == 0 or step == len(data):
            for parameter, each in zip(server.parameters(), pending, strict=True):
                parameter.grad = each.clone()
                each.zero_()
            of_server.step()
        if step % pull_every == 0 or step == len(data):
            worker.load_state_dict(server.state_dict())
        else:
            of_worker.step()
        for optimizer in (of_server, of_worker):  # The learning rate changes as by a scheduler.
            optimizer.param_groups[0]["lr"] *= 0.9
    return worker


@pytest.mark.parametrize(("push_every", "pull_every"), [(1, 1), (3, 2)])
def test_it_does_what_its_definition_does_in_one_process(push_every: int, pull_every: int) -> None:
    run, data, model = run_of(push_every=push_every, pull_every=pull_every), batches(STEPS, 8), made()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    with run.serving():
        strategy = distributed(run, model, optimizer)
        assert strategy.ends_last == (push_every > 1)
        for step, (inputs, targets) in enumerate(data, 1):
            nn.functional.mse_loss(model(inputs), targets).backward()
            strategy.clip_gradients(list(model.parameters()), NORM)
            optimizer.step()
            optimizer.zero_grad()
            strategy.at_boundary(step)
            optimizer.param_groups[0]["lr"] *= 0.9
        assert strategy.finish() == (push_every > 1)
        strategy.leave()
        assert run.ended()
    assert difference(whole(model), by_definition(data, push_every, pull_every).state_dict()) < 1e-12


def test_a_step_with_gradients_that_are_not_finite_is_skipped_and_counted_by_the_servers_too() -> None:
    run, model = run_of(on_nan="skip"), made()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    with run.serving():
        strategy = distributed(run, model, optimizer)
        before = whole(model)
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, torch.nan)
        optimizer.step()
        assert difference(whole(model), before) == 0
        assert strategy.statistics()["skipped"] == 1
        model(torch.ones(1, 12, dtype=torch.float64)).sum().backward()
        optimizer.step()
        assert difference(whole(model), before) > 0
        assert strategy.statistics()["skipped"] == 1
        counts = [server.pairs[0].shard.ledger.counts for server in run.servers_now]
        strategy.leave()
    assert [(count.void, count.accepted) for count in counts] == [(1, 1)] * 2


@pytest.mark.parametrize("pull_every", [1, 2])
def test_with_a_scaler_it_does_what_one_process_does(pull_every: int) -> None:
    run, data, model, expected = (
        run_of(pull_every=pull_every),
        batches(6, 8, torch.float32),
        *(made(torch.float32),) * 2,
    )
    expected = made(torch.float32)
    # With plain SGD, the local updates between two pulls equal the servers' updates.
    one, other = (torch.optim.SGD(each.parameters(), lr=0.1) for each in (model, expected))
    with run.serving():
        strategy = distributed(run, model, one)
        scale = descend_scaled(model, one, data, slice(None))
        strategy.leave()
    assert scale == descend_scaled(expected, other, data, slice(None))
    assert difference(whole(model), expected.state_dict()) == 0


def test_each_of_several_optimizers_has_its_own_exchange() -> None:
    run, data, model, expected = run_of(), batches(STEPS, 8), made(), made()

    def optimizers_of(each: nn.Module) -> list[torch.optim.Optimizer]:
        first, second = each[0], each[2]
        return [torch.optim.SGD(first.parameters(), lr=0.1), torch.optim.AdamW(second.parameters(), lr=0.01)]

    optimizers, others = optimizers_of(model), optimizers_of(expected)
    with run.serving():
        strategy = ShardedDownpour(run.environment(0))
        strategy.start(CPU)
        strategy.prepare([model], optimizers, CPU)
        for optimizer in optimizers:
            strategy.distribute(model, optimizer, CPU)
        for batch in data:
            for each, steppers in ((model, optimizers), (expected, others)):
                each.zero_grad()
                nn.functional.mse_loss(each(batch[0]), batch[1]).backward()
                for optimizer in steppers:
                    optimizer.step()
        strategy.finish()
        strategy.leave()
        assert run.ended()
    assert difference(whole(model), expected.state_dict()) < 1e-12


def test_parameters_of_a_restarted_server_reach_the_shards(tmp_path: Path) -> None:
    run, model = replace(run_of(checkpoint_every_s=600.0), folder=str(tmp_path), run_id="run"), made()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = batches(3, 8)

    def step(batch: tuple[torch.Tensor, torch.Tensor]) -> None:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(batch[0]), batch[1]).backward()
        optimizer.step()

    with run.serving():
        strategy = distributed(run, model, optimizer)
        saved = whole(model)
        for server in run.servers_now:
            server.save_for_itself()
        step(data[0])
        for number in range(2):
            run.replace_server(number)
        step(data[1])  # In this step, the worker notices that the servers were lost, and the step's push is lost, too.
        assert difference(whole(model), saved) == 0
        step(data[2])
        assert difference(whole(model), saved) > 0
        strategy.leave()


def test_the_servers_keep_the_buffers_of_the_first_rank() -> None:
    run, model = run_of(), nn.Sequential(nn.Linear(12, 4), nn.BatchNorm1d(4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with run.serving():
        strategy = distributed(run, model, optimizer)
        model(batches(1, 8, torch.float32)[0][0]).square().sum().backward()
        optimizer.step()
        rows = next(server.pairs[0].rows for server in run.servers_now if server.pairs[0].rows.state()["buffers"])
        sent = rows.state()["buffers"][0]
        strategy.leave()
    expected = torch.cat([each.reshape(-1).view(torch.uint8) for each in model.buffers()])
    assert torch.equal(sent, expected)


def test_what_shards_do_not_support_is_refused_by_name() -> None:
    run, model = run_of(), made()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    name = next(name for name, _ in model.named_parameters())
    with run.serving():
        strategy = distributed(run, model, optimizer)
        with torch.no_grad():
            next(model.parameters()).to_local().clamp_(-0.01, 0.01)
        sentence = f"changed the parameter {name} outside .* which downpour does not support with strategy.shard"
        with pytest.raises(UsageProblem, match=sentence):
            optimizer.step()
        optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))]})
        with pytest.raises(UsageProblem, match="other parameters than it had in distribute"):
            optimizer.step()
        strategy.leave()


def test_models_and_optimizers_that_cannot_be_exchanged_are_refused_before_they_are_sharded() -> None:
    strategy = ShardedDownpour(run_of().environment(0))
    model = made()
    first = next(model.parameters()).requires_grad_(False)
    name = next(name for name, _ in model.named_parameters())
    with pytest.raises(UsageProblem, match=f"No optimizer trains the parameter `{name}`, which downpour does not"):
        strategy.prepare([model], [torch.optim.SGD(model.parameters(), lr=0.1)], CPU)
    first.requires_grad_()
    with pytest.raises(UsageProblem, match=r"Parameter servers cannot run torch\.optim\.LBFGS"):
        strategy.prepare([model], [torch.optim.LBFGS(model.parameters())], CPU)
    assert not hasattr(first, "device_mesh")


def test_without_servers_nothing_begins() -> None:
    with pytest.raises(EnvironmentProblem, match="needs parameter servers, but none take part"):
        ShardedDownpour(run_of().environment(0)).start(CPU)


def test_the_strategy_is_chosen_for_groups_of_several_ranks_of_downpour_only() -> None:
    alone = run_of().environment(0)
    assert isinstance(choose(alone), ParameterServerStrategy)
    assert isinstance(choose(replace(alone, group_size=2, world_size=2)), ShardedDownpour)
    with pytest.raises(UsageProblem, match="sandblaster trains whole models"):
        choose(replace(alone, strategy="sandblaster"))


def test_a_failed_exchange_of_the_first_rank_ends_the_wait_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = run_of().environment(0)
    first = ShardedDownpour(environment)
    sent: list[int] = []

    def fail() -> None:
        raise EnvironmentProblem("no servers")

    monkeypatch.setattr(first, "_broadcast", sent.extend)
    with pytest.raises(EnvironmentProblem):
        first._on_first_rank(fail)
    assert sent == [FAILED]
    trainer = TrainerAddress("worker-0", "127.0.0.1", 1, 2, 0)
    other = ShardedDownpour(replace(environment, group_rank=1, group_size=2, peers=Peers(trainers=(trainer,))))
    messages = iter([[WAITS], [WAITS], sent])
    monkeypatch.setattr(other, "_broadcast", lambda _: next(messages))
    with pytest.raises(PeerLost, match=r"worker-0\.0 on 127\.0\.0\.1 is gone: its exchange"):
        other._await_first()

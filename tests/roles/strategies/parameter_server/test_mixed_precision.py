"""Tests of automatic mixed precision on the CPU: autocast in bfloat16, and a GradScaler that skips steps."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.roles.strategies.parameter_server.served_run import SEEDING, Run, difference
from tests.roles.strategies.parameter_server.test_downpour import distribute
from tests.roles.strategies.parameter_server.test_sandblaster import batches, network
from torchyard_roles.errors import UsageProblem

pytestmark = pytest.mark.train

CPU = torch.device("cpu")
OVERFLOWS = 3
"""The step in which gradients overflow."""


def network_in_float32() -> nn.Module:
    with SEEDING:
        return network(torch.float32)


def descend(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    data: list[tuple[torch.Tensor, torch.Tensor]],
    part: slice,
    accumulate: int = 1,
) -> float:
    """Trains as in torch's documentation; each step accumulates `accumulate` equal parts of a batch. Returns the final
    scale.
    """
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**6, growth_interval=4)
    for step, (inputs, targets) in enumerate(data):
        factor = float("inf") if step == OVERFLOWS else 1 / accumulate
        for number in range(accumulate):
            mine = slice(number, None, accumulate) if accumulate > 1 else part
            with torch.autocast("cpu", torch.bfloat16):
                outputs = model(inputs[mine])
                assert outputs.dtype == torch.bfloat16
                loss = nn.functional.mse_loss(outputs.float(), targets[mine]) * factor
            scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    return scaler.get_scale()


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize(
    ("workers", "options"),
    [(2, {}), (1, {"push_every": 2, "pull_every": 2})],
    ids=["each step by the servers", "steps of the worker's own between"],
)
def test_it_does_what_it_does_in_one_process(workers: int, options: dict[str, Any], fused: bool) -> None:
    """The scales and the parts are powers of two, so the results are equal bit for bit.

    A fused optimizer handles the scale itself.
    """
    run = Run(workers, 2, strategy="downpour" if options else "sandblaster", options=options)
    data = batches(10, 8, torch.float32)

    def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.125, momentum=0.0 if options else 0.5, fused=fused)

    def act(rank: int) -> tuple[nn.Module, float, float]:
        strategy, model = run.worker(rank), network_in_float32()
        model, optimizer = strategy.distribute(model, optimizer_of(model), CPU)
        scale = descend(model, optimizer, data, slice(rank, None, workers))
        strategy.leave()
        return model, scale, strategy.statistics()["skipped"]

    with run.serving():
        outcomes = run.on_workers(act)
        assert run.ended()
    alone = network_in_float32()
    expected = descend(alone, optimizer_of(alone), data, slice(None), accumulate=workers)
    assert expected == 2.0**6  # The scale has grown once and was halved once.
    for model, scale, skipped in outcomes:
        assert (scale, skipped) == (expected, 1)
        # With `push_every`, the gradients of two steps are pushed as their sum, so the results differ by rounding
        # errors.
        assert difference(model.state_dict(), alone.state_dict()) <= (1e-6 if options else 0)


def test_gradients_are_unscaled_before_they_are_clipped() -> None:
    run = Run(1, 2)
    with run.serving():
        strategy, model = run.worker(0), network_in_float32()
        model, optimizer = strategy.distribute(model, torch.optim.SGD(model.parameters(), lr=0.1), CPU)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**6)
        inputs, targets = batches(1, 8, torch.float32)[0]

        def backward() -> None:
            optimizer.zero_grad()
            scaler.scale(nn.functional.mse_loss(model(inputs), targets)).backward()

        backward()
        scaler.unscale_(optimizer)
        norm = nn.utils.get_total_norm([parameter.grad for parameter in model.parameters()])
        before = model[0].weight.detach().clone()
        assert strategy.clip_gradients(list(model.parameters()), 1e-3).item() == pytest.approx(norm.item(), rel=1e-6)
        scaler.step(optimizer)
        scaler.update()
        assert 0 < (model[0].weight - before).norm() < 0.1 * 1.001e-3
        backward()
        strategy.clip_gradients(list(model.parameters()), 1.0)
        with pytest.raises(UsageProblem, match=r"Call scaler\.unscale_\(optimizer\) before it"):
            scaler.step(optimizer)
        strategy.abandon()


def test_a_gradient_scaler_s_skipped_step_is_no_ones_step() -> None:
    run = Run(2, 1)

    def act(rank: int) -> list[float]:
        strategy, model, optimizer = distribute(run, rank)
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        weight, means = model[0].weight, []
        for scaled in (4.0, float("inf")):
            before = weight.detach().clone()
            scaler.scale(torch.ones(()))  # Initializes the scale, as the call in a script's forward pass does.
            weight.grad = torch.full((24, 12), scaled)
            scaler.step(optimizer)
            scaler.update()
            means.append((weight.detach() - before).mean().item())
        strategy.leave()
        return means

    with run.serving():
        for unscaled, skipped in run.on_workers(act):
            assert unscaled == pytest.approx(-0.02, rel=1e-4)
            assert skipped == 0.0


def test_servers_sum_gradients_of_sixteen_bits_in_thirty_two() -> None:
    run = Run(3, 1)

    def act(rank: int) -> list[float]:
        strategy, model = run.worker(rank), nn.Linear(4, 1, bias=False, dtype=torch.bfloat16)
        nn.init.zeros_(model.weight)
        model, optimizer = strategy.distribute(model, torch.optim.SGD(model.parameters(), lr=1.0), CPU)
        model.weight.grad = torch.full_like(model.weight, 1.0 if rank else 256.0)
        optimizer.step()
        strategy.leave()
        return model.weight.flatten().tolist()

    with run.serving():
        assert run.on_workers(act) == [[-86.0] * 4] * 3  # In bfloat16, 256 + 1 is rounded to 256.

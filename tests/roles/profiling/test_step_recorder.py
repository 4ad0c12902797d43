"""Tests that the parts of steps are measured, with several batch sizes, by a clock that only the script advances."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from torchyard_roles.cluster import Cluster
from torchyard_roles.environment import Environment
from torchyard_roles.profiling import step_recorder
from torchyard_roles.profiling.step_recorder import StepRecorder
from torchyard_roles.strategies.single_process import SingleProcess

pytestmark = pytest.mark.train

FORWARD_S, BACKWARD_S, LOADING_S, OPTIMIZER_S = 0.1, 0.2, 0.01, 0.05


class Clock:
    """A clock that stands still unless `advance` is called."""

    now = 0.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


class Finished(BaseException):
    """Raised instead of exiting the process."""


class TimedModel(torch.nn.Module):
    """A model whose forward pass takes longer with more samples, and whose first layer's gradient comes last."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock = clock
        self.first = torch.nn.Linear(4, 8, bias=False)
        self.last = torch.nn.Linear(8, 2, bias=False)

    def forward(self, samples: torch.Tensor) -> torch.Tensor:
        self.clock.advance(FORWARD_S * len(samples) / 8)
        hidden = self.first(samples)
        hidden.register_hook(lambda _: self.clock.advance(BACKWARD_S))
        result: torch.Tensor = self.last(hidden)
        return result


class TimedOptimizer(torch.optim.Optimizer):
    """Gradient descent with a state as large as the parameters, whose step takes some time."""

    def __init__(self, model: TimedModel) -> None:
        super().__init__(model.parameters(), {})
        self.clock = model.clock

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        self.clock.advance(OPTIMIZER_S)
        for parameter in self.param_groups[0]["params"]:
            buffer = self.state[parameter].setdefault("momentum_buffer", torch.zeros_like(parameter))
            parameter.sub_(buffer.mul_(0.9).add_(parameter.grad), alpha=0.01)


@pytest.fixture
def clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    file = str(tmp_path / "folder" / "profile.json")
    recorder = StepRecorder(file, clock)

    def finish(self: StepRecorder) -> None:
        self.write()
        raise Finished

    monkeypatch.setattr(StepRecorder, "finish", finish)
    monkeypatch.setitem(step_recorder._recorders, file, recorder)
    return clock


def train(clock: Clock, file: Path, *, samples: int = 800, uses_loader: bool = True) -> dict[str, Any]:
    """Trains until the recorder exits the process; returns the content of its file."""
    cluster = Cluster(Environment(profile=str(file)), SingleProcess(), torch.device("cpu"))
    model = TimedModel(clock)
    model, optimizer = cluster.distribute(model, TimedOptimizer(model))
    data = torch.utils.data.TensorDataset(torch.randn(samples, 4))
    loader: Any = cluster.loader(data, batch_size=8) if uses_loader else torch.utils.data.DataLoader(data, batch_size=8)

    def loop() -> None:
        for _ in range(1000):
            for [batch] in loader:
                clock.advance(LOADING_S)
                optimizer.zero_grad()
                model(batch).sum().backward()
                optimizer.step()

    with pytest.raises(Finished):
        loop()
    found: dict[str, Any] = json.loads(file.read_text())
    return found


def test_parts_of_a_step_are_measured_with_three_batch_sizes(clock: Clock, tmp_path: Path) -> None:
    found = train(clock, tmp_path / "folder" / "profile.json")
    assert [size["batch"] for size in found["sizes"]] == [8, 4, 2]
    for size in found["sizes"]:
        assert size["forward"]["mean"] == pytest.approx(FORWARD_S * size["batch"] / 8)
        assert size["backward"]["mean"] == pytest.approx(BACKWARD_S)
        assert size["optimizer"]["mean"] == pytest.approx(OPTIMIZER_S)
        assert size["other"]["mean"] == pytest.approx(LOADING_S)
        assert size["step"]["spread"] == pytest.approx(0, abs=1e-9)
    assert not found["black_box"]
    # The last layer's gradient is ready at once, and the first layer's after the backward pass.
    assert [(each["bytes"], round(each["ready_s"], 6)) for each in found["gradients"]] == [(64, 0), (128, BACKWARD_S)]
    assert found["parameter_bytes"] == found["gradient_bytes"] == {"float32": 192}
    assert found["optimizer_bytes"] == 192
    assert found["peak_bytes"] > 0


def test_a_script_with_its_own_loader_is_measured_with_its_own_batches(clock: Clock, tmp_path: Path) -> None:
    found = train(clock, tmp_path / "folder" / "profile.json", uses_loader=False)
    [size] = found["sizes"]
    assert size["batch"] is None
    assert size["step"]["mean"] == pytest.approx(FORWARD_S + BACKWARD_S + OPTIMIZER_S + LOADING_S)


def test_smaller_last_batches_of_an_epoch_are_not_measured(clock: Clock, tmp_path: Path) -> None:
    found = train(clock, tmp_path / "folder" / "profile.json", samples=8 * 5 + 1)
    assert found["sizes"][0]["batch"] == 8
    assert found["sizes"][0]["step"]["spread"] == pytest.approx(0, abs=1e-9)

"""Tests of hooks that run once in each step, even if a subclass's step() calls that of its base class."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import torchyard_roles as ty
from torchyard_roles.optimizer_hooks import after_step, before_step

pytestmark = pytest.mark.train


class Clamping(torch.optim.SGD):
    """An optimizer as found in public scripts: its step() calls that of its base class, and then changes parameters."""

    def step(self, closure: Any = None) -> Any:
        loss = super().step(closure)
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.data.clamp_(-1, 1)
        return loss


class Wrapping(torch.optim.SGD):
    """An optimizer whose step() calls that of another optimizer."""

    inner: torch.optim.Optimizer

    def step(self, closure: Any = None) -> Any:
        return self.inner.step(closure)


def parameters() -> list[torch.nn.Parameter]:
    return [torch.nn.Parameter(torch.ones(2))]


@pytest.fixture
def stepping() -> Clamping:
    """Returns an optimizer, and also creates one of its base class: without it, torch would not run hooks twice."""
    torch.optim.SGD(parameters(), lr=0.1)
    return Clamping(parameters(), lr=0.1)


def test_hooks_run_once_in_each_step(stepping: Clamping) -> None:
    calls: list[str] = []
    stepping.register_step_pre_hook(lambda *_: calls.append("torch's own"))
    before_step(stepping, lambda *_: calls.append("before"))
    after_step(stepping, lambda *_: calls.append("after"))
    for _ in range(2):
        stepping.step()
    assert calls.count("torch's own") == 4, "torch no longer runs hooks twice: this module can be deleted."
    assert [each for each in calls if each != "torch's own"] == ["before", "after", "before", "after"]


def test_a_hook_may_replace_the_closure_once(stepping: Clamping) -> None:
    def wrapped(optimizer: Any, arguments: Any, named: Any) -> Any:
        return ((optimizer, lambda: arguments[1]() * 2), named)

    before_step(stepping, wrapped)
    assert stepping.step(lambda: 3.0) == 6.0


def test_hooks_run_after_a_step_that_raised_an_exception(stepping: Clamping) -> None:
    calls: list[str] = []
    before_step(stepping, lambda *_: calls.append("before"))
    after_step(stepping, lambda *_: calls.append("after"))

    def fails() -> None:
        raise ArithmeticError

    with pytest.raises(ArithmeticError):
        stepping.step(fails)
    stepping.step()
    assert calls == ["before", "before", "after"]


def test_hooks_run_in_the_step_of_another_optimizer(stepping: Clamping) -> None:
    outer = Wrapping(parameters(), lr=0.1)
    outer.inner = stepping
    calls: list[str] = []
    before_step(outer, lambda *_: calls.append("outer"))
    before_step(stepping, lambda *_: calls.append("inner"))
    outer.step()
    assert calls == ["outer", "inner"]


def test_a_removed_hook_no_longer_runs(stepping: Clamping) -> None:
    calls: list[str] = []
    before_step(stepping, lambda *_: calls.append("before")).remove()
    stepping.step()
    assert not calls


def test_the_steps_of_such_an_optimizer_are_counted_once() -> None:
    with ty.join() as cluster:
        model = torch.nn.Linear(2, 1)
        torch.optim.SGD(model.parameters(), lr=0.1)
        model, optimizer = cluster.distribute(model, Clamping(model.parameters(), lr=0.1))
        for _ in range(3):
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
        assert cluster._progress.steps == 3

"""The reference result of a loop, computed without any of Torchyard's code.

The ranks run separately, each with its own random state and buffers. Gradients are averaged in rank order after each
backward pass outside no_sync() and accumulate() and before each step. The loop imports this module's `join` under the
name `torchyard_roles`.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import sys
import threading
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Subset

from tests.upstream.lockstep import Lockstep

LOOPS = Path(__file__).parent / "loops"
RESULTS = "UPSTREAM_RESULTS"

_this_rank = threading.local()


class Cluster:
    """Replaces torchyard_roles' Cluster for one rank of the reference; has those methods that loops call."""

    role = "worker"
    device = torch.device("cpu")

    def __init__(self, lockstep: Lockstep, rank: int, *, alone: bool) -> None:
        self._lockstep = lockstep
        self._alone = alone
        self.rank = rank
        self.world_size = lockstep.ranks
        self.is_chief = rank == 0
        self._models: list[nn.Module] = []
        self._local = False
        self.passes = 0
        """The nesting depth of backward passes. Reentrant checkpointing nests them."""

    def _meet(self, call: str, value: Any) -> list[Any]:
        return self._lockstep.meet(self.rank, call, value)

    def distribute(self, model: Any, optimizer: Any = None) -> Any:
        models, optimizers = (each if isinstance(each, (list, tuple)) else [each] for each in (model, optimizer))
        for each in models:
            self._models.append(each)
            _take_state(each, self._meet("distribute", _state(each))[0])
            each.no_sync = lambda: self.accumulate()  # Copies of the model share this function.
        if optimizer is None:
            return model
        for each in optimizers:
            self._wrap_step(each)
        return model, optimizer

    def _wrap_step(self, optimizer: torch.optim.Optimizer) -> None:
        own_step = optimizer.step

        @functools.wraps(own_step)
        def step(this: torch.optim.Optimizer, closure: Callable[[], Any] | None = None) -> Any:
            parameters = [each for group in this.param_groups for each in group["params"]]
            if closure is None:
                self._average(parameters)
                return own_step()

            def averaged() -> Any:
                with torch.enable_grad():
                    loss = closure()
                self._average(parameters)
                return loss if self._alone else self.mean(loss)

            return own_step(averaged)

        optimizer.step = types.MethodType(step, optimizer)  # type: ignore[method-assign]  # The reference wraps this method.

    def after_backward(self) -> None:
        """Averages the gradients of every model, and copies the chief's buffers to all ranks.

        DDP copies the buffers at another time: before a forward pass.
        """
        if self._local or self._alone:
            return
        self._average([each for model in self._models for each in model.parameters()])
        for model in self._models:
            buffers = dict(model.named_buffers())
            first = self._meet("buffers", {name: each.clone() for name, each in buffers.items()})[0]
            for name, each in buffers.items():
                # `.data` hides the change from autograd, which may still need batch norm's statistics for a backward
                # pass.
                each.data.copy_(first[name])

    def _average(self, parameters: Sequence[Tensor]) -> None:
        if self._alone:
            return
        mine = [None if each.grad is None else each.grad.detach().clone() for each in parameters]
        columns = zip(*self._meet("gradients", mine), strict=True)
        for parameter, gradients in zip(parameters, columns, strict=True):
            if all(each is None for each in gradients):
                continue
            total = functools.reduce(torch.add, [each for each in gradients if each is not None]) / self.world_size
            if parameter.grad is None or total.is_sparse:
                parameter.grad = total
            else:
                parameter.grad.detach().copy_(total)

    @contextmanager
    def accumulate(self) -> Iterator[None]:
        before, self._local = self._local, True
        try:
            yield
        finally:
            self._local = before

    def loader(self, dataset: Any, batch_size: int = 1, shuffle: bool = False, *, evaluation: bool = False) -> Any:
        if shuffle:
            raise NotImplementedError("the reference does not know in which order Torchyard shuffles")
        mine = list(range(self.rank, len(dataset), self.world_size))
        if not evaluation and len(dataset) % (self.world_size * batch_size):
            raise NotImplementedError("the reference does not pad a data set")
        return DataLoader(Subset(dataset, mine), batch_size=batch_size)

    def clip_gradients(self, max_norm: float | None = None, *, value: float | None = None) -> Any:
        parameters = [each for model in self._models for each in model.parameters()]
        self._average(parameters)
        if value is not None:
            return nn.utils.clip_grad_value_(parameters, value)
        assert max_norm is not None
        return nn.utils.clip_grad_norm_(parameters, max_norm)

    def mean(self, value: Any) -> Any:
        values = self._meet("mean", value.detach().clone() if isinstance(value, Tensor) else value)
        return sum(values) / len(values)

    def any(self, flag: Any) -> bool:
        return any(map(bool, self._meet("any", flag)))

    def report(self, **metrics: Any) -> None:
        pass

    def checkpoint(self, **stateful: Any) -> None:
        pass

    def leave(self) -> None:
        pass


def _state(model: nn.Module) -> dict[str, Tensor]:
    return {name: each.detach().clone() for name, each in [*model.named_parameters(), *model.named_buffers()]}


@torch.no_grad()
def _take_state(model: nn.Module, state: dict[str, Tensor]) -> None:
    for name, each in [*model.named_parameters(), *model.named_buffers()]:
        each.copy_(state[name])


def _join() -> Cluster:
    cluster: Cluster = _this_rank.cluster
    return cluster


@contextmanager
def _in_place_of_torchyard() -> Iterator[None]:
    """Makes `import torchyard_roles` return this module, and averages gradients at the end of every backward pass."""
    module = types.ModuleType("torchyard_roles")
    module.join = _join  # type: ignore[attr-defined]  # The attribute is added here.
    before, own_backward = sys.modules.get("torchyard_roles"), torch.autograd.backward

    def backward(*arguments: Any, **options: Any) -> None:
        cluster: Cluster | None = getattr(_this_rank, "cluster", None)
        if cluster is None:
            return own_backward(*arguments, **options)
        cluster.passes += 1
        try:
            own_backward(*arguments, **options)
        finally:
            cluster.passes -= 1
        if not cluster.passes:
            cluster.after_backward()
        return None

    sys.modules["torchyard_roles"] = module
    torch.autograd.backward = backward
    sys.path.insert(0, str(LOOPS))
    try:
        yield
    finally:
        sys.path.remove(str(LOOPS))
        torch.autograd.backward = own_backward
        del sys.modules["torchyard_roles"]
        if before is not None:
            sys.modules["torchyard_roles"] = before


def run(loop: str, ranks: int, results: Path, *, alone: bool = False) -> None:
    """Runs one loop, whose ranks write their results into a folder. If `alone` is set, the ranks do not average
    gradients.
    """
    results.mkdir(parents=True, exist_ok=True)
    os.environ[RESULTS] = str(results)
    lockstep = Lockstep(ranks)

    def program(rank: int) -> None:
        _this_rank.cluster = Cluster(lockstep, rank, alone=alone)
        spec = importlib.util.spec_from_file_location(f"{loop}_of_rank_{rank}", LOOPS / f"{loop}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
        module.main()

    with _in_place_of_torchyard():
        lockstep.run(program)

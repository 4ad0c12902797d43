"""Trains a small model in various ways under distribute(), and compares each way with a single process.

    averaged.py [SCENARIO …]

The single process computes the batches of all ranks in sequence and averages their gradients. For each scenario, the
script prints the largest difference of a parameter or buffer as JSON.
"""

from __future__ import annotations

import contextlib
import copy
import io
import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import torchyard_roles as ty
from torchyard_roles.environment import read
from torchyard_roles.strategies.registry import choose

STEPS = 5
FLOAT = torch.float64


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh())
        self.head = nn.Linear(8, 2)
        self.spare = nn.Linear(8, 2)
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.seen += inputs.mean()
        return self.head(self.encoder(inputs))

    def loss(self, inputs: torch.Tensor) -> torch.Tensor:
        return (self(inputs) - torch.sin(inputs[:, :2])).square().mean()


@dataclass
class Output:
    """An output container that torch does not traverse."""

    logits: torch.Tensor


class Custom(Net):
    def forward(self, inputs: torch.Tensor) -> Any:
        return Output(super().forward(inputs))


class Embedded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(20, 3, sparse=True)
        self.head = nn.Linear(3, 1)


class Normal(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mean = nn.Linear(6, 2)

    def forward(self, inputs: torch.Tensor) -> torch.distributions.Distribution:
        return torch.distributions.Normal(self.mean(inputs), 1.0)


def batch(rank: int, step: int, part: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * step + 10 * part + rank)
    return torch.randn(8, 6, generator=generator, dtype=FLOAT)


def sgd(model: nn.Module) -> list[torch.optim.Optimizer]:
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return [torch.optim.SGD(trainable, lr=0.05, momentum=0.9)]


@dataclass
class Scenario:
    """One way of training.

    Attributes:
        gradients: A function of model, rank and step that computes the gradients of one step.
        between: Called on every rank after each step.
    """

    gradients: Callable[[Any, int, int], None]
    build: Callable[[], nn.Module] = Net
    optimizers: Callable[[Any], list[torch.optim.Optimizer]] = sgd
    between: Callable[[Any, list[torch.optim.Optimizer], int], None] = lambda model, optimizers, step: None


def by_a_method(model: Net, rank: int, step: int) -> None:
    model.loss(batch(rank, step)).backward()


def parts_apart(model: Net, rank: int, step: int) -> None:
    hidden = model.encoder(batch(rank, step))
    (model.head(hidden) - 1).square().mean().backward()


def by_hand(model: Net, rank: int, step: int) -> None:
    parameters = [*model.encoder.parameters(), *model.head.parameters()]
    gradients = torch.autograd.grad(model.loss(batch(rank, step)), parameters)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        if step % 2 or parameter.grad is None:
            parameter.grad = gradient
        else:
            parameter.grad.copy_(gradient)


def some_ranks(model: Net, rank: int, step: int) -> None:
    """Computes gradients of different parameters on each rank."""
    hidden = model.encoder(batch(rank, step))
    head = model.spare if (rank + step) % 3 == 0 else model.head
    head(hidden).square().mean().backward()


def more_passes(model: Net, rank: int, step: int) -> None:
    """Accumulates the gradients of two forward passes with one backward pass, and then makes another pass."""
    (model.loss(batch(rank, step)) + model.loss(batch(rank, step, 1))).backward()
    model(batch(rank, step, 2)).square().mean().backward()


def accumulated(model: Net, rank: int, step: int) -> None:
    """Accumulates gradients; in odd steps, all passes are inside no_sync()."""
    for part in range(3):
        with model.no_sync() if part < 2 or step % 2 else contextlib.nullcontext():
            (model.loss(batch(rank, step, part)) / 3).backward()


def checkpointed(model: Net, rank: int, step: int) -> None:
    inputs = batch(rank, step).requires_grad_()
    hidden = checkpoint(model.encoder, inputs, use_reentrant=step % 2 == 0)
    hidden = checkpoint(lambda hidden: torch.tanh(model.spare(hidden)), hidden, use_reentrant=step % 2 == 0)
    hidden.square().mean().backward()


class Checkpointed(Net):
    """Uses a layer in two reentrant checkpoints, so its gradient is accumulated twice in a pass."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = checkpoint(self.encoder, inputs.clone().requires_grad_(), use_reentrant=True)
        first = checkpoint(self.head, hidden, use_reentrant=True)
        return first + checkpoint(self.head, torch.tanh(hidden), use_reentrant=True)


def custom_output(model: Custom, rank: int, step: int) -> None:
    model(batch(rank, step)).logits.square().mean().backward()


def distribution(model: Normal, rank: int, step: int) -> None:
    inputs = batch(rank, step)
    (-model(inputs).log_prob(torch.sin(inputs[:, :2])).mean()).backward()


def embedded(model: Embedded, rank: int, step: int) -> None:
    rows = torch.tensor([rank, step, 7], device="cpu")
    model.head(model.table(rows)).square().sum().backward()


def frozen_at_first() -> Net:
    model = Net()
    model.encoder.requires_grad_(False)
    return model


def all_of_them(model: nn.Module) -> list[torch.optim.Optimizer]:
    return [torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)]


def unfreeze(model: Net, optimizers: list[torch.optim.Optimizer], step: int) -> None:
    if step == 1:
        model.encoder.requires_grad_(True)


def add_group(model: Net, optimizers: list[torch.optim.Optimizer], step: int) -> None:
    if step == 1:
        model.encoder.requires_grad_(True)
        optimizers[0].add_param_group({"params": list(model.encoder.parameters()), "lr": 0.01})


def generator_and_critic() -> nn.ModuleDict:
    return nn.ModuleDict({"g": nn.Linear(6, 6), "d": nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))})


def one_each(model: nn.ModuleDict) -> list[torch.optim.Optimizer]:
    return [torch.optim.SGD(model["d"].parameters(), lr=0.05), torch.optim.SGD(model["g"].parameters(), lr=0.05)]


def clamp(model: Any, optimizers: list[torch.optim.Optimizer], step: int) -> None:
    for parameter in model.parameters():
        parameter.data.clamp_(-0.3, 0.3)


SCENARIOS = {
    "a method of the model": Scenario(by_a_method),
    "parts called apart": Scenario(parts_apart),
    "gradients assigned by hand": Scenario(by_hand),
    "parameters that only some ranks use": Scenario(some_ranks),
    "several passes a step": Scenario(more_passes),
    "accumulation": Scenario(accumulated),
    "checkpointing of parts": Scenario(checkpointed),
    "reentrant checkpointing of a shared layer": Scenario(by_a_method, Checkpointed),
    "custom output": Scenario(custom_output, Custom),
    "a distribution as output": Scenario(distribution, Normal),
    "sparse gradients": Scenario(embedded, Embedded),
    "late unfreezing": Scenario(by_a_method, frozen_at_first, all_of_them, unfreeze),
    "a late parameter group": Scenario(by_a_method, frozen_at_first, sgd, add_group),
    "clamping": Scenario(by_a_method, between=clamp),
}


def reference(scenario: Scenario, first: nn.Module, world_size: int) -> nn.Module:
    models = [copy.deepcopy(first) for _ in range(world_size)]
    for model in models:
        model.no_sync = contextlib.nullcontext
    optimizers = [scenario.optimizers(model) for model in models]
    for step in range(STEPS):
        for rank, model in enumerate(models):
            for optimizer in optimizers[rank]:
                optimizer.zero_grad(set_to_none=step % 2 == 0)
            scenario.gradients(model, rank, step)
        average(models)
        for rank, model in enumerate(models):
            for optimizer in optimizers[rank]:
                optimizer.step()
            scenario.between(model, optimizers[rank], step)
    return models[0]


def average(models: list[nn.Module]) -> None:
    for same in zip(*(model.parameters() for model in models), strict=True):
        gradients = [parameter.grad for parameter in same if parameter.grad is not None]
        if gradients:
            mean = sum(gradient.to_dense() for gradient in gradients) / len(models)
            for parameter in same:
                is_sparse = any(gradient.is_sparse for gradient in gradients)
                parameter.grad = mean.to_sparse(1) if is_sparse else mean.clone()
    for same in zip(*(model.buffers() for model in models), strict=True):
        for buffer in same[1:]:
            buffer.copy_(same[0])


def trained(cluster: ty.Cluster, scenario: Scenario) -> float:
    torch.manual_seed(5 + cluster.rank)  # All ranks start from the chief's parameters.
    model = scenario.build()
    optimizers = scenario.optimizers(model)
    torch.manual_seed(5)
    first = scenario.build()
    model, optimizers = cluster.distribute(model, optimizers)
    for step in range(STEPS):
        for optimizer in optimizers:
            optimizer.zero_grad(set_to_none=step % 2 == 0)
        scenario.gradients(model, cluster.rank, step)
        for optimizer in optimizers:
            optimizer.step()
        scenario.between(model, optimizers, step)
    return difference(model, reference(scenario, first, cluster.world_size))


def difference(one: nn.Module, other: nn.Module) -> float:
    ours, theirs = one.state_dict(), other.state_dict()
    assert ours.keys() == theirs.keys()
    return max((ours[name].double() - theirs[name].double()).abs().max().item() for name in ours)


def gan(cluster: ty.Cluster) -> float:
    """Trains with two optimizers in turn. The critic's optimizer steps more often.

    Only the critic's loss calls the critic twice.
    """

    def critic_loss(model: nn.ModuleDict, rank: int, step: int) -> torch.Tensor:
        real, fake = batch(rank, step), model["g"](batch(rank, step, 1)).detach()
        return (model["d"](real).mean() - model["d"](fake).mean()).square()

    def generator_loss(model: nn.ModuleDict, rank: int, step: int) -> torch.Tensor:
        return -model["d"](model["g"](batch(rank, step, 5))).mean()

    turns = [("d", critic_loss, step) for step in range(6)]
    for at in (2, 5, 8):
        turns.insert(at, ("g", generator_loss, at))

    torch.manual_seed(7 + cluster.rank)
    model = generator_and_critic()
    torch.manual_seed(7)
    first = generator_and_critic()
    critic, generator = one_each(model)
    cluster.distribute(model, [critic, generator])
    optimizers = {"d": critic, "g": generator}
    for name, loss, step in turns:
        optimizers[name].zero_grad()
        loss(model, cluster.rank, step).backward()
        optimizers[name].step()

    alone = dict(zip("dg", one_each(first), strict=True))
    for name, loss, step in turns:
        for optimizer in alone.values():
            optimizer.zero_grad()
        for rank in range(cluster.world_size):
            (loss(first, rank, step) / cluster.world_size).backward()
        alone[name].step()
    return difference(model, first)


def line_search(cluster: ty.Cluster) -> float:
    """Trains with LBFGS. The mean loss determines how often it calls the closure, so this number is the same on all
    ranks.
    """

    def descend(model: nn.Module, loss: Callable[[], torch.Tensor]) -> None:
        optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=5, line_search_fn="strong_wolfe")
        if model is ours:
            cluster.distribute(model, optimizer)

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            value = loss()
            value.backward()
            return value

        for _ in range(3):
            optimizer.step(closure)

    torch.manual_seed(9 + cluster.rank)
    ours = nn.Linear(6, 2)
    torch.manual_seed(9)
    alone = nn.Linear(6, 2)

    def loss_of(model: nn.Module, rank: int) -> torch.Tensor:
        inputs = batch(rank, 0)
        return (model(inputs) - torch.sin(inputs[:, :2])).square().mean()

    descend(ours, lambda: loss_of(ours, cluster.rank))
    ranks = range(cluster.world_size)
    descend(alone, lambda: sum(loss_of(alone, rank) for rank in ranks) / cluster.world_size)
    return difference(ours, alone)


def copies(cluster: ty.Cluster) -> float:
    """Copies, averages, saves and compiles the model, evaluates it on the chief only, and trains copies separately."""
    torch.manual_seed(11)
    model = Net()
    model, optimizer = cluster.distribute(model, torch.optim.SGD(model.parameters(), lr=0.05))
    compiled = torch.compile(model, backend="eager")
    averaged = torch.optim.swa_utils.AveragedModel(model)
    for step in range(3):
        optimizer.zero_grad()
        (compiled(batch(cluster.rank, step)).square().mean()).backward()
        optimizer.step()
        averaged.update_parameters(model)
    file = io.BytesIO()
    torch.save({"model": model, "optimizer": optimizer, "averaged": averaged}, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    assert next(iter(dict(model.named_parameters()))) == "encoder.0.weight"
    assert type(model) is Net
    apart = difference(model, loaded["model"])
    for each in (copy.deepcopy(model), loaded["model"], loaded["averaged"].module):
        # The gradients of copies are not exchanged.
        each.loss(batch(cluster.rank, 9)).backward()
    if cluster.is_chief:
        model.eval()
        with torch.no_grad():
            model(batch(0, 3))
        model.train()
    return apart


if __name__ == "__main__":
    torch.set_default_dtype(FLOAT)
    found = {}
    cluster = ty.join()
    special = {"two optimizers that take turns": gan, "a line search": line_search, "copies": copies}
    for name in sys.argv[1:] or [*SCENARIOS, *special]:
        if found:  # Each scenario is a separate run in the same torch process group.
            cluster = type(cluster)(cluster._environment, choose(read(os.environ)), torch.device("cpu"))
        found[name] = special[name](cluster) if name in special else trained(cluster, SCENARIOS[name])
        cluster._strategy.finish()
        cluster._strategy._averager and cluster._strategy._averager.close()
    print(json.dumps(found), flush=True)

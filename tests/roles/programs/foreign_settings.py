"""Trains in a script that changes many process-wide settings, and prints the loss of each step as JSON.

    foreign_settings.py DTYPE [spawn] [compile] [reentrant | checkpoint] [accumulate] [sparse] [dataclass] [lbfgs]
                        [optimizers] [device] [all-trained]

DTYPE is torch's default dtype. The other settings are a default device, deterministic algorithms, anomaly mode,
inference mode in evaluations, a different number of threads, a different working directory, a replaced sys.stdout,
signal handlers, loaders with forked and spawned workers, several parameter groups, tied and frozen parameters (unless
`all-trained`), outputs in a dict, and a scheduler. Further words choose torch.compile, activation checkpointing of both
kinds, gradient accumulation, an embedding with sparse gradients, outputs in a dataclass, LBFGS with its closure,
several optimizers, and `meta` as the default device, so that a tensor that is created without a device has no values.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import torchyard_roles as ty

WORDS = set(sys.argv[2:])


@dataclass
class Outputs:
    out: torch.Tensor
    hidden: torch.Tensor


class Core(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.second = nn.Linear(8, 8)
        self.tied = nn.Linear(8, 8)
        self.tied.weight = self.second.weight
        self.norm = nn.LayerNorm(8)
        self.frozen = nn.Linear(8, 8).requires_grad_("all-trained" in WORDS)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.second(torch.tanh(inputs)))
        return self.norm(torch.tanh(self.tied(hidden)) + 0.1 * self.frozen(hidden))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.core = Core()
        self.last = nn.Linear(8, 1)
        if "sparse" in WORDS:
            self.table = nn.Embedding(5, 8, sparse=True)

    def forward(self, inputs: torch.Tensor) -> Any:
        hidden = self.first(inputs)
        if "sparse" in WORDS:
            hidden = hidden + self.table(inputs[:, 0].abs().clamp(max=4).long())
        if WORDS & {"reentrant", "checkpoint"}:
            hidden = checkpoint(self.core, hidden, use_reentrant="reentrant" in WORDS)
        else:
            hidden = self.core(hidden)
        out = self.last(hidden)
        return Outputs(out, hidden) if "dataclass" in WORDS else {"out": out, "hidden": hidden}


def out_of(outputs: Any) -> torch.Tensor:
    return outputs.out if isinstance(outputs, Outputs) else outputs["out"]


def optimizers_of(model: nn.Module) -> list[torch.optim.Optimizer]:
    trained = [each for each in model.parameters() if each.requires_grad]
    if "lbfgs" in WORDS:
        return [torch.optim.LBFGS(trained, lr=0.05, max_iter=2)]
    matrices = [each for each in trained if each.dim() > 1]
    others = [each for each in trained if each.dim() < 2]
    if "optimizers" in WORDS:
        return [torch.optim.SGD(matrices, lr=0.02), torch.optim.SGD(others, lr=0.01)]
    return [torch.optim.SGD([{"params": matrices, "lr": 0.02}, {"params": others, "lr": 0.01}])]


def step(model: Any, optimizers: list[torch.optim.Optimizer], features: torch.Tensor, targets: torch.Tensor) -> float:
    def backward(part: slice, share: float) -> torch.Tensor:
        loss = (out_of(model(features[part])) - targets[part]).square().mean()
        (loss * share).backward()
        return loss.detach()

    if "lbfgs" in WORDS:
        (optimizer,) = optimizers

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            return backward(slice(None), 1.0)

        return float(optimizer.step(closure))
    for optimizer in optimizers:
        optimizer.zero_grad()
    if "accumulate" in WORDS:
        half = len(features) // 2
        with model.no_sync() if "compile" not in WORDS else contextlib.nullcontext():
            first = backward(slice(half), 0.5)
        loss = (first + backward(slice(half, None), 0.5)) / 2
    else:
        loss = backward(slice(None), 1.0)
    for optimizer in optimizers:
        optimizer.step()
    return loss.item()


def set_default_device() -> None:
    torch.set_default_device("meta" if "device" in WORDS else "cpu")


def batches_of(loader: Any) -> Iterator[Any]:
    torch.set_default_device("cpu")  # DataLoader draws its seed on the default device.
    iterator = iter(loader)
    batch = next(iterator, None)
    set_default_device()
    while batch is not None:
        yield batch
        batch = next(iterator, None)


def main() -> None:
    dtype = getattr(torch, sys.argv[1])
    torch.set_default_dtype(dtype)
    torch.set_default_device("cpu")
    torch.use_deterministic_algorithms(True)
    stdout, sys.stdout = sys.stdout, io.StringIO()
    os.chdir(tempfile.gettempdir())
    for number in (signal.SIGUSR1, signal.SIGTERM):
        signal.signal(number, lambda *_: None)

    cluster = ty.join()
    torch.manual_seed(4)
    model: Any = Net()
    optimizers = optimizers_of(model)
    set_default_device()
    model, optimizers = cluster.distribute(model, optimizers)
    used = torch.compile(model, backend="eager") if "compile" in WORDS else model
    torch.set_num_threads(2)
    inputs = torch.randn(160, 4, generator=torch.Generator().manual_seed(1), device="cpu")
    dataset = torch.utils.data.TensorDataset(inputs, inputs.sum(dim=1, keepdim=True))
    losses = []
    for workers, context in ((0, None), (1, "fork"), (1, "spawn"))[: 3 if "spawn" in WORDS else 2]:
        loader = cluster.loader(
            dataset, batch_size=8, shuffle=False, num_workers=workers, multiprocessing_context=context
        )
        for features, targets in batches_of(loader):
            with torch.autograd.set_detect_anomaly(len(losses) % 4 == 0):
                losses.append(step(used, optimizers, features, targets))
        model.eval()
        with torch.inference_mode():
            out_of(used(inputs)).sum().item()
        model.train()
    cluster.leave()
    assert torch.get_default_dtype() is dtype
    assert isinstance(sys.stdout, io.StringIO)
    assert sys.stdout.getvalue() == "" or "torchyard:" in sys.stdout.getvalue()
    sys.stdout = stdout
    print(json.dumps(losses), flush=True)


if __name__ == "__main__":
    main()

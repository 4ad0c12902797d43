"""Functions that all loops share: double precision, small data sets, and the result file that tests compare."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

RESULTS = "UPSTREAM_RESULTS"
"""The environment variable that names the folder for results, in which each rank writes one file."""
RATE, PASSES = "UPSTREAM_RATE", "UPSTREAM_PASSES"
"""Environment variables whose values multiply the learning rates and the passes over the data. Several asynchronous
groups take smaller and more steps, as the documentation recommends.
"""


def begin(seed: int = 1) -> None:
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(seed)


def rate(lr: float) -> float:
    return lr * float(os.environ.get(RATE, "1"))


def passes(count: int) -> int:
    return count * int(os.environ.get(PASSES, "1"))


def curve(samples: int = 48, features: int = 6, seed: int = 7) -> TensorDataset:
    """Samples of a smooth function with little noise, which a small network learns in a few steps."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(samples, features, generator=generator)
    weights = torch.randn(features, 1, generator=generator)
    targets = torch.tanh(inputs @ weights) + 0.05 * torch.randn(samples, 1, generator=generator)
    return TensorDataset(inputs, targets)


def draws(rank: int, steps: int, *shape: int) -> Iterator[Tensor]:
    """Yields one tensor of random numbers per step, from a generator that belongs to this rank."""
    generator = torch.Generator().manual_seed(100 + rank)
    for _ in range(steps):
        yield torch.randn(*shape, generator=generator)


def text(length: int, vocabulary: int, seed: int) -> Tensor:
    """Returns a sequence of tokens, most of which are determined by the preceding token."""
    generator = torch.Generator().manual_seed(seed)
    jumps = torch.rand(length, generator=generator) < 0.1
    anywhere = torch.randint(vocabulary, (length,), generator=generator)
    tokens = [0]
    for jump, other in zip(jumps.tolist(), anywhere.tolist(), strict=True):
        tokens.append(other if jump else (3 * tokens[-1] + 1) % vocabulary)
    return torch.tensor(tokens)


def finish(cluster: Any, losses: Sequence[float], numbers: Sequence[float] = (), **models: nn.Module) -> None:
    """Writes this rank's result if RESULTS is set.

    The result contains all parameters, buffers and losses, and other numbers that are compared. If the model learns,
    the last losses are lower than the first.
    """
    parameters = {f"{kind}.{name}": value for kind, model in models.items() for name, value in model.named_parameters()}
    buffers = {f"{kind}.{name}": value for kind, model in models.items() for name, value in model.named_buffers()}
    result = {
        "parameters": {name: value.detach().clone() for name, value in parameters.items()},
        "buffers": {name: value.detach().clone() for name, value in buffers.items()},
        "losses": torch.tensor(losses, dtype=torch.float64),
        "numbers": torch.tensor(numbers, dtype=torch.float64),
    }
    print(f"rank {cluster.rank}: loss {result['losses'][0]:.4f} to {result['losses'][-1]:.4f}", flush=True)
    if RESULTS in os.environ:
        torch.save(result, Path(os.environ[RESULTS], f"rank-{cluster.rank}.pt"))

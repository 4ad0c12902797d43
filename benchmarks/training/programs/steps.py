"""Runs steps of a model with the given number of megabytes. Writes the durations to figures-<replica>.json.

For each measured step, the file contains the seconds of its backward pass, including `--compute`, and of the whole
step. With `--compute 0`, computing gradients takes almost no time, so a step consists of its exchange. Otherwise each
step begins with a sleep that simulates an accelerator.
"""

import argparse
import json
import os
import time
from pathlib import Path

import torch
from torch import nn

import torchyard_roles as ty

PARTS = 16


class Part(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.values = nn.Parameter(torch.zeros(size))


class Flat(nn.Module):
    """A model that sums its parameters, so computing its gradients takes almost no time."""

    def __init__(self, megabytes: float) -> None:
        super().__init__()
        self.parts = nn.ModuleList(Part(int(megabytes * 1e6 / 4 / PARTS)) for _ in range(PARTS))

    def forward(self) -> torch.Tensor:
        return sum(part.values.sum() for part in self.parts)


def settle(device: torch.device) -> None:
    """Waits for pending operations on a GPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=float, default=60.0)
    parser.add_argument("--compute", type=float, default=0.0, help="seconds a step computes")
    parser.add_argument("--steps", type=int, default=7)
    parser.add_argument("--warm-up", type=int, default=2)
    args = parser.parse_args()

    cluster = ty.join()
    torch.set_num_threads(1)
    model = Flat(args.megabytes)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = cluster.distribute(model, optimizer)
    took = []
    for _ in range(args.steps + args.warm_up):
        began = time.perf_counter()
        time.sleep(args.compute)
        model().backward()
        settle(cluster.device)
        middle = time.perf_counter()
        optimizer.step()
        settle(cluster.device)
        took.append((middle - began, time.perf_counter() - began))
        optimizer.zero_grad(set_to_none=False)
    folder = Path(os.environ["TORCHYARD_RUN_DIR"])
    (folder / f"figures-{os.environ['TORCHYARD_REPLICA']}.json").write_text(json.dumps(took[args.warm_up :]))


if __name__ == "__main__":
    main()

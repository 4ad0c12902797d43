"""Trains a model of the given size, whose computing takes sampled times, and writes the durations of its steps.

Computing sleeps, or, with --busy, multiplies matrices: as many as take about the sampled time on a fast core.

A fifth of a step's computing is the forward pass; the rest is spread over the layers' backward passes, so that
gradients become ready one after the other. The times are normally distributed; each rank samples its own. The durations
of steps from one end to the next are written to figures-<replica>.json.
"""

import argparse
import json
import os
import time
from pathlib import Path
from random import Random

import torch
from torch import nn

import torchyard_roles as ty

MATRIX = 384
PRODUCTS_PER_S = 600
"""Number of products of two square matrices of that size that stand for a second of computing."""


class Computing:
    """Computing that takes about as long as sleeping."""

    def __init__(self):
        self.left, self.right = torch.rand(MATRIX, MATRIX), torch.rand(MATRIX, MATRIX)

    def __call__(self, seconds):
        for _ in range(round(seconds * PRODUCTS_PER_S)):
            torch.mm(self.left, self.right)


class Pause(torch.autograd.Function):
    """Passes a tensor on, and computes in its backward pass."""

    @staticmethod
    def forward(context, value, pace):
        context.pace = pace
        return value.clone()

    @staticmethod
    def backward(context, gradient):
        context.pace["compute"](context.pace["layer"])
        return gradient, None


class Layer(nn.Module):
    def __init__(self, size, pace):
        super().__init__()
        self.values = nn.Parameter(torch.zeros(size))
        self.pace = pace

    def forward(self, value):
        # The sum comes after the pause in the backward pass, so that the gradient is ready at the end of the pause.
        return value + Pause.apply(self.values.sum() * 1e-6 + value * 0, self.pace)


class Paced(nn.Module):
    def __init__(self, megabytes, layers, compute):
        super().__init__()
        self.pace = {"layer": 0.0, "compute": compute}
        self.layers = nn.ModuleList(Layer(int(megabytes * 1e6 / 4 / layers), self.pace) for _ in range(layers))
        self.layers_count = layers

    def forward(self, seconds):
        self.pace["compute"](seconds / 5)
        self.pace["layer"] = seconds * 4 / 5 / self.layers_count
        value = torch.zeros((), requires_grad=True)
        for layer in self.layers:
            value = layer(value)
        return value


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=float, default=16.0)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--compute", type=float, default=0.3, help="mean seconds of computing in a step")
    parser.add_argument("--spread", type=float, default=0.0, help="standard deviation of that")
    parser.add_argument("--busy", action="store_true", help="multiply matrices instead of sleeping")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--warm-up", type=int, default=3)
    args = parser.parse_args()

    cluster = ty.join()
    torch.set_num_threads(1)
    random = Random(args.seed * 1000 + (cluster.rank or 0))
    model = Paced(args.megabytes, args.layers, Computing() if args.busy else time.sleep)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = cluster.distribute(model, optimizer)
    ends = []
    for _ in range(args.steps + args.warm_up):
        optimizer.zero_grad(set_to_none=False)
        model(max(0.2 * args.compute, random.gauss(args.compute, args.spread))).backward()
        optimizer.step()
        ends.append(time.monotonic())
    folder = Path(os.environ["TORCHYARD_RUN_DIR"])
    measured = [after - before for before, after in zip(ends[args.warm_up - 1 :], ends[args.warm_up :], strict=False)]
    (folder / f"figures-{os.environ['TORCHYARD_REPLICA']}.json").write_text(json.dumps(measured))


if __name__ == "__main__":
    main()

"""Trains with two optimizers, the second of which steps twice for each step of the first.

    counts_pairs.py HOW UPDATES

Each step subtracts 1 from each parameter. HOW is `calls` or `lists` for two models, which are passed to distribute() in
two calls or in one, or `halves` for two parts of one model. After leave(), the script prints the values of each half's
parameters, and the sum of a frozen parameter and a buffer that initially hold the rank.
"""

import json
import sys

import torch
from torch import nn

import torchyard_roles as ty


def main() -> None:
    how, updates = sys.argv[1], int(sys.argv[2])
    cluster = ty.join()
    halves = [nn.Linear(50, 1, dtype=torch.float64), nn.Linear(50, 1, dtype=torch.float64)]
    for half in halves:
        for parameter in half.parameters():
            nn.init.constant_(parameter, float(cluster.rank))  # All ranks receive the chief's value, which is 0.
    halves[1].frozen = nn.Parameter(torch.full((3,), float(cluster.rank)), requires_grad=False)
    halves[1].register_buffer("seen", torch.full((2,), float(cluster.rank)))
    optimizers = [torch.optim.SGD(half.parameters(), lr=1.0) for half in halves]
    if how == "calls":
        for half, optimizer in zip(halves, optimizers, strict=True):
            cluster.distribute(half, optimizer)
    else:
        cluster.distribute(nn.ModuleList(halves) if how == "halves" else halves, optimizers)
    loader = cluster.loader(torch.ones(updates * cluster.world_size, 50, dtype=torch.float64))
    for ones in loader:
        for half, optimizer, steps in zip(halves, optimizers, (1, 2), strict=True):
            for _ in range(steps):
                optimizer.zero_grad()
                half(ones).sum().backward()
                optimizer.step()
    steps_done = cluster._progress.steps
    cluster.leave()
    values = [
        sorted({value for each in (half.weight, half.bias) for value in each.flatten().tolist()}) for half in halves
    ]
    rest = (halves[1].frozen.sum() + halves[1].seen.sum()).item()
    print(json.dumps({"steps": steps_done, "values": values, "rest": rest}), flush=True)


if __name__ == "__main__":
    main()

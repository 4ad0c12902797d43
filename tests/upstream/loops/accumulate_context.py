"""Accumulates the gradients of two small batches for each step; the first batch is computed in cluster.accumulate()."""

from contextlib import nullcontext

import experiment
import torch
from torch import nn

import torchyard_roles as ty

PARTS = 2


def main() -> None:
    cluster = ty.join()
    experiment.begin()
    model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=experiment.rate(0.1), momentum=0.5)
    model, optimizer = cluster.distribute(model, optimizer)
    loader = cluster.loader(experiment.curve(), batch_size=4, shuffle=False)
    losses = []
    for _ in range(experiment.passes(3)):
        optimizer.zero_grad()
        for number, (inputs, targets) in enumerate(loader, start=1):
            with cluster.accumulate() if number % PARTS else nullcontext():
                loss = nn.functional.mse_loss(model(inputs), targets)
                (loss / PARTS).backward()
            if number % PARTS == 0:
                optimizer.step()
                optimizer.zero_grad()
            losses.append(loss.item())
    experiment.finish(cluster, losses, model=model)


if __name__ == "__main__":
    main()

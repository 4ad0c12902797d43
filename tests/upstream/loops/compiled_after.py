"""Calls torch.compile after distribute(), as torch recommends for DDP."""

import experiment
import torch
from torch import nn

import torchyard_roles as ty


def main() -> None:
    cluster = ty.join()
    experiment.begin()
    model = nn.Sequential(nn.Linear(6, 12), nn.GELU(), nn.Linear(12, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=experiment.rate(0.02))
    model, optimizer = cluster.distribute(model, optimizer)
    compiled = torch.compile(model, backend="aot_eager")
    loader = cluster.loader(experiment.curve(), batch_size=4, shuffle=False)
    losses = []
    for _ in range(experiment.passes(3)):
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(compiled(inputs), targets)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    experiment.finish(cluster, losses, model=model)


if __name__ == "__main__":
    main()

"""ReduceLROnPlateau gets a different value on each rank, so the learning rates of the ranks differ, and then the
models.

This is a fault in the script. Plain DDP would silently continue, but no result could be correct, so Torchyard must
refuse to continue.
"""

import experiment
import torch
from torch import nn

import torchyard_roles as ty


def main() -> None:
    cluster = ty.join()
    experiment.begin()
    model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = cluster.distribute(model, optimizer)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.3, patience=0)
    loader = cluster.loader(experiment.curve(), batch_size=4, shuffle=False)
    losses = []
    for epoch in range(experiment.passes(4)):
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(inputs), targets)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        scheduler.step(float(epoch) if cluster.rank else -float(epoch))
    experiment.finish(cluster, losses, model=model)


if __name__ == "__main__":
    main()

"""ReduceLROnPlateau gets the mean of all ranks' validation losses; each rank has evaluated a part of the data."""

import experiment
import torch
from torch import nn

import torchyard_roles as ty


def main() -> None:
    cluster = ty.join()
    experiment.begin()
    model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=experiment.rate(0.15), momentum=0.5)
    model, optimizer = cluster.distribute(model, optimizer)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.3, patience=0, threshold=0.5)
    loader = cluster.loader(experiment.curve(), batch_size=4, shuffle=False)
    inputs_there, targets_there = experiment.curve(24, seed=8).tensors
    losses, rates = [], set()
    for _ in range(experiment.passes(4)):
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(inputs), targets)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        with torch.no_grad():
            mine = slice(cluster.rank, None, cluster.world_size)
            validation = nn.functional.mse_loss(model(inputs_there[mine]), targets_there[mine])
        scheduler.step(cluster.mean(validation))
        rates.add(optimizer.param_groups[0]["lr"])
    assert len(rates) > 1, "the learning rate was never reduced: this loop shows nothing"
    experiment.finish(cluster, losses, model=model)


if __name__ == "__main__":
    main()

"""Prunes a model between two epochs: torch.nn.utils.prune renames the parameter and applies a mask to it."""

import experiment
import torch
from torch import nn
from torch.nn.utils import prune

import torchyard_roles as ty


def main() -> None:
    cluster = ty.join()
    experiment.begin()

    model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=experiment.rate(0.1), momentum=0.5)
    model, optimizer = cluster.distribute(model, optimizer)
    loader = cluster.loader(experiment.curve(), batch_size=4, shuffle=False)
    losses = []
    for epoch in range(experiment.passes(3)):
        if epoch == 1:
            prune.l1_unstructured(model[0], "weight", amount=0.2)
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(inputs), targets)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    experiment.finish(cluster, losses, model=model)


if __name__ == "__main__":
    main()

"""Adds noise to the gradients between backward() and step(), as in differentially private SGD; each rank has its own
noise.
"""

import experiment
import torch
from torch import nn

import torchyard_roles as ty


def main() -> None:
    cluster = ty.join()
    experiment.begin()
    model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=experiment.rate(0.1))
    model, optimizer = cluster.distribute(model, optimizer)
    torch.manual_seed(10 + cluster.rank)
    loader = cluster.loader(experiment.curve(), batch_size=4, shuffle=False)
    losses = []
    for _ in range(experiment.passes(3)):
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(inputs), targets)
            loss.backward()
            for parameter in model.parameters():
                parameter.grad.add_(torch.randn_like(parameter), alpha=0.01)
            optimizer.step()
            losses.append(loss.item())
    experiment.finish(cluster, losses, model=model)


if __name__ == "__main__":
    main()

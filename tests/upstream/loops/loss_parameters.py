"""Learns the weights of several losses, too. They are parameters outside the model, in their own parameter group."""

import experiment
import torch
from torch import nn

import torchyard_roles as ty


def main() -> None:
    cluster = ty.join()
    experiment.begin()

    model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 2))
    log_variances = nn.Parameter(torch.zeros(2))
    groups = [{"params": model.parameters()}, {"params": [log_variances], "lr": experiment.rate(0.05)}]
    optimizer = torch.optim.Adam(groups, lr=experiment.rate(0.02))
    model, optimizer = cluster.distribute(model, optimizer)
    loader = cluster.loader(experiment.curve(), batch_size=4, shuffle=False)
    losses = []
    for _ in range(experiment.passes(3)):
        for inputs, targets in loader:
            predicted = model(inputs)
            errors = torch.stack(
                [(predicted[:, :1] - targets).square().mean(), (predicted[:, 1:] - targets**2).square().mean()]
            )
            loss = (errors * (-log_variances).exp() + log_variances).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(errors.sum().item())
    experiment.finish(cluster, losses, log_variances.tolist(), model=model)


if __name__ == "__main__":
    main()

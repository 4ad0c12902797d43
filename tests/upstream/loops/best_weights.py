"""Restores the weights of the second epoch with load_state_dict() after the third epoch, as a script does if the
validation loss has increased.
"""

import copy

import experiment
import torch
from torch import nn

import torchyard_roles as ty


def main() -> None:
    cluster = ty.join()
    experiment.begin()

    model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=experiment.rate(0.1), momentum=0.5)
    model, optimizer = cluster.distribute(model, optimizer)
    loader = cluster.loader(experiment.curve(), batch_size=4, shuffle=False)
    losses = []
    for epoch in range(experiment.passes(4)):
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(inputs), targets)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        if epoch == 1:
            best = copy.deepcopy(model.state_dict())
        elif epoch == 2:
            model.load_state_dict(best)
    experiment.finish(cluster, losses, model=model)


if __name__ == "__main__":
    main()

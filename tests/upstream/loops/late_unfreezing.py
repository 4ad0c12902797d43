"""Fine-tunes a model whose backbone is frozen during the first epoch; the optimizer has all parameters from the
beginning.
"""

import experiment
import torch
from torch import nn

import torchyard_roles as ty


def main() -> None:
    cluster = ty.join()
    experiment.begin()
    backbone = nn.Sequential(nn.Linear(6, 12), nn.Tanh())
    model = nn.Sequential(backbone, nn.Linear(12, 1))
    for parameter in backbone.parameters():
        parameter.requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=experiment.rate(0.1), momentum=0.5)
    model, optimizer = cluster.distribute(model, optimizer)
    loader = cluster.loader(experiment.curve(), batch_size=4, shuffle=False)
    losses = []
    for epoch in range(experiment.passes(3)):
        if epoch == 1:
            for parameter in model[0].parameters():
                parameter.requires_grad_(True)
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(inputs), targets)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    experiment.finish(cluster, losses, model=model)


if __name__ == "__main__":
    main()

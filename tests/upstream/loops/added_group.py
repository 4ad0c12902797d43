"""Fine-tuning: the backbone's parameters are added to the optimizer later, as a group with its own learning rate."""

import experiment
import torch
from torch import nn

import torchyard_roles as ty


def main() -> None:
    cluster = ty.join()
    experiment.begin()
    backbone = nn.Sequential(nn.Linear(6, 12), nn.Tanh())
    head = nn.Linear(12, 1)
    model = nn.Sequential(backbone, head)
    optimizer = torch.optim.Adam(head.parameters(), lr=experiment.rate(0.02))
    model, optimizer = cluster.distribute(model, optimizer)
    loader = cluster.loader(experiment.curve(), batch_size=4, shuffle=False)
    losses = []
    for epoch in range(experiment.passes(3)):
        if epoch == 1:
            optimizer.add_param_group({"params": list(model[0].parameters()), "lr": experiment.rate(0.01)})
        for inputs, targets in loader:
            loss = nn.functional.mse_loss(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    experiment.finish(cluster, losses, model=model)


if __name__ == "__main__":
    main()

"""Sharpness-aware minimization: the parameters are moved along the gradient, a second backward pass computes the
gradients there, and the parameters are moved back before the step.
"""

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
    for _ in range(experiment.passes(3)):
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(inputs), targets)
            loss.backward()
            with torch.no_grad():
                norm = torch.stack([parameter.grad.norm() for parameter in model.parameters()]).norm()
                before = [parameter.clone() for parameter in model.parameters()]
                for parameter in model.parameters():
                    parameter.add_(parameter.grad, alpha=0.05 / norm.item())
            optimizer.zero_grad()
            nn.functional.mse_loss(model(inputs), targets).backward()
            with torch.no_grad():
                for parameter, value in zip(model.parameters(), before, strict=True):
                    parameter.copy_(value)
            optimizer.step()
            losses.append(loss.item())
    experiment.finish(cluster, losses, model=model)


if __name__ == "__main__":
    main()

"""An exponential moving average of the parameters in a deep copy of the model, as in diffusion models."""

import copy

import experiment
import torch
from torch import nn

import torchyard_roles as ty


def main() -> None:
    cluster = ty.join()
    experiment.begin()
    model = nn.Sequential(nn.Linear(6, 12), nn.SiLU(), nn.Linear(12, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=experiment.rate(0.02))
    model, optimizer = cluster.distribute(model, optimizer)
    target = copy.deepcopy(model).requires_grad_(False)
    loader = cluster.loader(experiment.curve(), batch_size=4, shuffle=False)
    losses = []
    for _ in range(experiment.passes(3)):
        for inputs, targets in loader:
            with torch.no_grad():
                bootstrap = target(inputs)
            loss = nn.functional.mse_loss(model(inputs), targets + 0.1 * bootstrap)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                for slow, fast in zip(target.parameters(), model.parameters(), strict=True):
                    slow.lerp_(fast, 0.1)
            losses.append(loss.item())
    experiment.finish(cluster, losses, model=model, target=target)


if __name__ == "__main__":
    main()

"""Activation checkpointing with a backward pass inside the backward pass (use_reentrant=True)."""

import experiment
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import torchyard_roles as ty


class Deep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 12)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(12, 12), nn.Tanh(), nn.Dropout(0.1)) for _ in range(3))
        self.last = nn.Linear(12, 1)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = self.first(inputs)
        for block in self.blocks:
            hidden = hidden + checkpoint(block, hidden, use_reentrant=True)
        return self.last(hidden)


def main() -> None:
    cluster = ty.join()
    experiment.begin()
    model = Deep()
    optimizer = torch.optim.Adam(model.parameters(), lr=experiment.rate(0.01))
    model, optimizer = cluster.distribute(model, optimizer)
    torch.manual_seed(10 + cluster.rank)
    loader = cluster.loader(experiment.curve(), batch_size=4, shuffle=False)
    losses = []
    for _ in range(experiment.passes(3)):
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(inputs), targets)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    experiment.finish(cluster, losses, model=model)


if __name__ == "__main__":
    main()

"""A model with one head per task: each rank uses a different head in each step, and one head is never used."""

import experiment
import torch
from torch import nn

import torchyard_roles as ty


class Tasks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 12), nn.Tanh())
        self.heads = nn.ModuleList(nn.Linear(12, 1) for _ in range(4))

    def forward(self, inputs: torch.Tensor, task: int) -> torch.Tensor:
        return self.heads[task](self.body(inputs))


def main() -> None:
    cluster = ty.join()
    experiment.begin()
    model = Tasks()
    optimizer = torch.optim.SGD(model.parameters(), lr=experiment.rate(0.1), momentum=0.5, weight_decay=0.01)
    model, optimizer = cluster.distribute(model, optimizer)
    loader = cluster.loader(experiment.curve(), batch_size=4, shuffle=False)
    losses = []
    for _ in range(experiment.passes(4)):
        for step, (inputs, targets) in enumerate(loader):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(inputs, (cluster.rank + step) % 3), targets)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    experiment.finish(cluster, losses, model=model)


if __name__ == "__main__":
    main()

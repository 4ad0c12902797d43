"""Uses LBFGS with a line search, so the number of evaluations of the model in each step depends on the loss."""

import experiment
import torch
from torch import nn

import torchyard_roles as ty


def main() -> None:
    cluster = ty.join()
    experiment.begin()
    model = nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 1))
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=4, line_search_fn="strong_wolfe")
    model, optimizer = cluster.distribute(model, optimizer)
    inputs, targets = (each[cluster.rank :: cluster.world_size] for each in experiment.curve(24).tensors)
    losses = []

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        return loss

    for _ in range(3):
        losses.append(optimizer.step(closure).item())
    experiment.finish(cluster, losses, model=model)


if __name__ == "__main__":
    main()

"""Trains with batch norm. After each epoch, the chief alone evaluates the model while the other ranks continue."""

import experiment
import torch
from torch import nn

import torchyard_roles as ty


def main() -> None:
    cluster = ty.join()
    experiment.begin()
    model = nn.Sequential(nn.Linear(6, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=experiment.rate(0.05), momentum=0.5)
    model, optimizer = cluster.distribute(model, optimizer)
    loader = cluster.loader(experiment.curve(), batch_size=4, shuffle=False)
    inputs_there, targets_there = experiment.curve(20, seed=8).tensors
    losses = []
    for epoch in range(experiment.passes(3)):
        model.train()
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(inputs), targets)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        if cluster.is_chief:
            model.eval()
            with torch.no_grad():
                score = nn.functional.mse_loss(model(inputs_there), targets_there)
            print(f"epoch {epoch}: validation loss {score:.4f}", flush=True)
    experiment.finish(cluster, losses, model=model)


if __name__ == "__main__":
    main()

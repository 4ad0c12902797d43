"""Stops early based on the exact validation loss: the ranks' parts of the data differ in size, and the ranks' sums are
combined. One rank also stops for a reason that only this rank knows.
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
    validation = cluster.loader(experiment.curve(25, seed=8), batch_size=4, evaluation=True)
    best, losses, scores = float("inf"), [], []
    for epoch in range(8):
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(inputs), targets)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        total = count = 0.0
        with torch.no_grad():
            for inputs, targets in validation:
                total += nn.functional.mse_loss(model(inputs), targets, reduction="sum").item()
                count += len(inputs)
        score = cluster.mean(total) / cluster.mean(count)
        assert cluster.mean(count) * cluster.world_size == 25
        scores.append(score)
        out_of_patience = score > 0.98 * best
        out_of_time = cluster.is_chief and epoch == 5
        best = min(best, score)
        if cluster.any(out_of_patience or out_of_time):
            break
    assert len(scores) < 8, "it never stopped early: this loop shows nothing"
    experiment.finish(cluster, losses, scores, model=model)


if __name__ == "__main__":
    main()

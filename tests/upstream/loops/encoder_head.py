"""Calls an encoder and a head separately, as in self-supervised learning and transfer learning."""

import experiment
import torch
from torch import nn

import torchyard_roles as ty


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 8))
        self.head = nn.Linear(8, 2)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(inputs))


def main() -> None:
    cluster = ty.join()
    experiment.begin()
    model = Classifier()
    optimizer = torch.optim.Adam(model.parameters(), lr=experiment.rate(0.02))
    model, optimizer = cluster.distribute(model, optimizer)
    loader = cluster.loader(experiment.curve(), batch_size=4, shuffle=False)
    losses = []
    for _ in range(experiment.passes(3)):
        for inputs, targets in loader:
            features = nn.functional.normalize(model.encoder(inputs), dim=1)
            loss = nn.functional.cross_entropy(model.head(features), (targets[:, 0] > 0).long())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    experiment.finish(cluster, losses, model=model)


if __name__ == "__main__":
    main()

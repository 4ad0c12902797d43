"""The model returns an object of its own class that contains a torch.distributions distribution, as models of Hugging
Face and Pyro do. Torch cannot look into such a container."""

import experiment
import torch
from torch import nn
from torch.distributions import Normal

import torchyard_roles as ty


class Prediction:
    def __init__(self, mean: torch.Tensor, log_scale: torch.Tensor) -> None:
        self.distribution = Normal(mean, log_scale.exp())

    def loss(self, targets: torch.Tensor) -> torch.Tensor:
        return -self.distribution.log_prob(targets).mean()


class Gaussian(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 12), nn.Tanh())
        self.mean = nn.Linear(12, 1)
        self.log_scale = nn.Linear(12, 1)

    def forward(self, inputs: torch.Tensor) -> Prediction:
        hidden = self.body(inputs)
        return Prediction(self.mean(hidden), self.log_scale(hidden))


def main() -> None:
    cluster = ty.join()
    experiment.begin()
    model = Gaussian()
    optimizer = torch.optim.Adam(model.parameters(), lr=experiment.rate(0.02))
    model, optimizer = cluster.distribute(model, optimizer)
    loader = cluster.loader(experiment.curve(), batch_size=4, shuffle=False)
    losses = []
    for _ in range(experiment.passes(3)):
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = model(inputs).loss(targets)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    experiment.finish(cluster, losses, model=model)


if __name__ == "__main__":
    main()

"""A variational autoencoder based on pytorch/examples: each rank has its own noise, and the loss is summed over the
batch.
"""

import experiment
import torch
from torch import Tensor, nn
from torch.nn import functional

import torchyard_roles as ty


class VAE(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(16, 12)
        self.fc21 = nn.Linear(12, 2)
        self.fc22 = nn.Linear(12, 2)
        self.fc3 = nn.Linear(2, 12)
        self.fc4 = nn.Linear(12, 16)

    def encode(self, images: Tensor) -> tuple[Tensor, Tensor]:
        hidden = functional.relu(self.fc1(images))
        return self.fc21(hidden), self.fc22(hidden)

    def decode(self, code: Tensor) -> Tensor:
        return torch.sigmoid(self.fc4(functional.relu(self.fc3(code))))

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, log_variance = self.encode(images.view(-1, 16))
        code = mean + torch.randn_like(mean) * (0.5 * log_variance).exp()
        return self.decode(code), mean, log_variance


def main() -> None:
    cluster = ty.join()
    experiment.begin()
    model = VAE()
    optimizer = torch.optim.Adam(model.parameters(), lr=experiment.rate(0.02))
    model, optimizer = cluster.distribute(model, optimizer)
    torch.manual_seed(10 + cluster.rank)
    losses = []
    for draw in experiment.draws(cluster.rank, experiment.passes(20), 4, 1, 4, 4):
        images = torch.sigmoid(3 * draw.mean(dim=3, keepdim=True).expand(-1, -1, -1, 4) - 2)
        optimizer.zero_grad()
        decoded, mean, log_variance = model(images)
        divergence = -0.5 * torch.sum(1 + log_variance - mean.pow(2) - log_variance.exp())
        loss = functional.binary_cross_entropy(decoded, images.view(-1, 16), reduction="sum") + divergence
        loss.backward()
        optimizer.step()
        losses.append(loss.item() / len(images))
    experiment.finish(cluster, losses, model=model)


if __name__ == "__main__":
    main()

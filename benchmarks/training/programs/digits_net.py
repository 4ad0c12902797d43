"""The network of PyTorch's MNIST example (4.8 MB), for both arms of the parameter server comparison."""

import torch
from torch import nn

BATCH = 32


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 32, 3),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(9216, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(BATCH, 1, 28, 28), torch.randint(0, 10, (BATCH,))

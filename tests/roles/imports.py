"""What training processes import, for a nursery that forks them (`tests.nursery`)."""

from __future__ import annotations

import sklearn.datasets  # noqa: F401
import torch

import torchyard_roles.exchange.process
import torchyard_roles.strategies  # noqa: F401

torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1).step()  # imports what optimizers need when used

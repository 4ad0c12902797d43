"""The imports of training processes, for the fork server of the tests."""

from __future__ import annotations

import sklearn.datasets  # noqa: F401  # imported for the fork server's children
import torch

# Creating an optimizer imports modules that are otherwise loaded lazily.
torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1).step()

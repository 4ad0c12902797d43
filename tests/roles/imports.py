"""The imports of training processes, for the fork server of the tests."""

from __future__ import annotations

import sklearn.datasets  # noqa: F401  # The import speeds up the children of the fork server.
import torch

# Creating an optimizer imports the modules that torch imports only on first use.
torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1).step()

"""The imports of training scripts, except for Torchyard's modules, which scripts import from the host's own archive."""

from __future__ import annotations

import sklearn.datasets  # noqa: F401 - for the examples that are forked
import torch
import torch.distributed

# Creating an optimizer imports the modules that torch imports only on first use.
torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))], lr=0.1).step()

"""What scripts that train import, but for Torchyard's own modules: those come from the host's archive."""

from __future__ import annotations

import sklearn.datasets  # noqa: F401 - for the examples that are forked
import torch
import torch.distributed

torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))], lr=0.1).step()  # imports what optimizers need when used

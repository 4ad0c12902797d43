"""The strategy of a process that trains alone: a single worker, an evaluator, or a script started by hand."""

from __future__ import annotations

import torch

from torchyard_roles.data_loader import DataShare
from torchyard_roles.strategies.strategy import Strategy


class SingleProcess(Strategy):
    """A strategy that exchanges nothing with other processes and does not initialize torch.distributed."""

    trains_alone = True

    def start(self, device: torch.device) -> None:
        pass

    def share(self) -> DataShare:
        return DataShare()

    def distribute(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, device: torch.device
    ) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        return model, optimizer

    def leave(self) -> None:
        pass

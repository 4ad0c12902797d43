"""What every strategy offers to `Cluster`, which knows no strategy by name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from torchyard_roles.sharding import Share


class Strategy(ABC):
    """One way to train a model on several processes. Lives from join() to leave()."""

    @abstractmethod
    def start(self, device: torch.device) -> None:
        """Meet the others; returns when all are there."""

    @abstractmethod
    def share(self) -> Share:
        """The part of the training data that is this process's own."""

    @abstractmethod
    def distribute(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, device: torch.device
    ) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        """What the script's loop uses in their place. The model is on `device` already; called once."""

    @abstractmethod
    def leave(self) -> None:
        """Part from the others after the last step. Not called by a process that dies of an exception."""

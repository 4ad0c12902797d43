"""Local SGD: every worker trains independently, and every few steps all workers average their parameters."""

from __future__ import annotations

import time
from pathlib import Path

import torch
import torch.distributed as dist
from torchyard_roles.environment import Environment
from torchyard_roles.strategies.all_reduce import AllReduce

EVERY = 8


class LocalSgd(AllReduce):
    """Averages the parameters of all workers every EVERY steps; start(), share() and leave() are inherited."""

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        self._parameters: list[torch.Tensor] = []
        self._averaged_at = 0
        self._exchange_s = 0.0

    def distribute(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, device: torch.device
    ) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        """Returns both unchanged; all workers start from the parameters of the chief, which is rank 0."""
        self.watch_gradients(model, optimizer)  # Applies the setting strategy.on_nan.
        self._parameters = [parameter.detach() for parameter in model.parameters() if parameter.requires_grad]
        for tensor in [*model.parameters(), *model.buffers()]:
            dist.broadcast(tensor.detach(), src=0)
        return model, optimizer

    def restore(self, folder: Path, step: int) -> None:
        """Does not average again: a checkpoint holds the chief's model after the averaging of its step."""
        super().restore(folder, step)
        self._averaged_at = step

    def at_boundary(self, step: int) -> None:
        """Averages if due; called between two steps on all workers, before they save or stop."""
        self._exchange_s = 0.0
        if step % EVERY == 0 and step != self._averaged_at:
            self._average(step)

    def finish(self) -> bool:
        """Averages at the end, before the chief's last save, because the averaging changes the model."""
        super().finish()
        self._average(self._averaged_at)
        return True

    def statistics(self) -> dict[str, float]:
        return {**super().statistics(), "exchange_s": self._exchange_s}

    def _average(self, step: int) -> None:
        began = time.monotonic()
        pending = [(each, dist.all_reduce(each, async_op=True)) for each in self._parameters]
        for parameter, work in pending:
            work.wait()
            parameter.div_(dist.get_world_size())
        self._averaged_at = step
        self._exchange_s = time.monotonic() - began

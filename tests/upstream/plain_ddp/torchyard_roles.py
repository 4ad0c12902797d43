"""Implements the interface of torchyard_roles with DistributedDataParallel, to verify the reference.

Supports the loops that plain DDP trains correctly: those with one optimizer whose forward passes all go through the
model.
"""

from __future__ import annotations

import atexit
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler


class Cluster:
    role = "worker"
    device = torch.device("cpu")

    def __init__(self) -> None:
        dist.init_process_group("gloo")
        atexit.register(dist.destroy_process_group)
        self.rank = dist.get_rank()
        self.world_size = dist.get_world_size()
        self.is_chief = self.rank == 0
        self._models: list[DistributedDataParallel] = []

    def distribute(self, model: Any, optimizer: Any) -> tuple[Any, Any]:
        if isinstance(model, list):
            return [self.distribute(each, None)[0] for each in model], optimizer
        self._models.append(DistributedDataParallel(model))
        return self._models[-1], optimizer

    def accumulate(self) -> Any:
        return self._models[0].no_sync()

    def loader(self, dataset: Any, batch_size: int = 1, shuffle: bool = False, *, evaluation: bool = False) -> Any:
        if evaluation:
            dataset = torch.utils.data.Subset(dataset, range(self.rank, len(dataset), self.world_size))
        sampler = None if evaluation else DistributedSampler(dataset, shuffle=shuffle)
        return DataLoader(dataset, batch_size=batch_size, sampler=sampler)

    def clip_gradients(self, max_norm: float | None = None, *, value: float | None = None) -> Any:
        parameters = [each for model in self._models for each in model.parameters()]
        if value is not None:
            return nn.utils.clip_grad_value_(parameters, value)
        assert max_norm is not None
        return nn.utils.clip_grad_norm_(parameters, max_norm)

    def mean(self, value: Any) -> Any:
        total = torch.as_tensor(value, dtype=torch.float64).clone()
        dist.all_reduce(total)
        total /= self.world_size
        return total if isinstance(value, Tensor) else total.item()

    def any(self, flag: Any) -> bool:
        return self.mean(float(bool(flag))) > 0


def join() -> Cluster:
    return Cluster()

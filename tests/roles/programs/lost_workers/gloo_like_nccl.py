"""A communicator over gloo that behaves as NCCL does when a rank is lost, for tests without a GPU.

Operations do not notice the loss, wait() of an operation does not wait, and after an abort, all operations look
complete although their values must not be used.
"""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from torchyard_roles.coordination.torch_store import TorchStore
from torchyard_roles.strategies.nccl_group import NcclGroup
from torchyard_roles.strategies.replaceable_group import ReplaceableGroup

CONNECT_S = 60.0


class LikeNccl(NcclGroup):
    def __init__(self, store: Any, rank: int, size: int) -> None:
        self.device = torch.device("cpu")
        self._lock = threading.Lock()
        self._is_aborted = False
        self._group: Any = _Group(dist.ProcessGroupGloo(store, rank, size, timedelta(seconds=1800)))
        self._check_connections()


class _Group:
    def __init__(self, group: Any) -> None:
        self.group = group
        self.ended = threading.Event()
        self.works: list[_Work] = []

    def allreduce(self, tensors: list[torch.Tensor], options: Any = None) -> _Work:
        options = options or dist.AllreduceOptions()
        return self._issued(tensors[0], lambda copy: self.group.allreduce([copy], options))

    def broadcast(self, tensor: torch.Tensor, root: int) -> _Work:
        return self._issued(tensor, lambda copy: self.group.broadcast(copy, root))

    def _issued(self, tensor: torch.Tensor, start: Any) -> _Work:
        copy = tensor.clone()
        self.works.append(_Work(start(copy), copy, tensor, self.ended))
        return self.works[-1]

    def abort(self) -> None:
        self.ended.set()
        for each in self.works:
            if not each.is_written:
                each.tensor.fill_(77)
        kept.append(self)  # Keeps the object, because gloo's destructor would wait for the operations.


class _Work:
    def __init__(self, work: Any, copy: torch.Tensor, tensor: torch.Tensor, ended: threading.Event) -> None:
        self.work, self.copy, self.tensor, self.ended = work, copy, tensor, ended
        self.is_written = False

    def is_completed(self) -> bool:
        if not self.is_written and not self.ended.is_set() and self.work.is_completed():
            self.tensor.copy_(self.copy)
            self.is_written = True
        return self.is_written or self.ended.is_set()

    def wait(self) -> None:
        assert self.is_completed()


kept: list[_Group] = []


def install() -> None:
    """Makes all process groups that can be replaced exchange gradients through this communicator."""

    def open_like_nccl(group: Any, prefix: str, place: int, size: int) -> LikeNccl:
        return LikeNccl(TorchStore(group._store, prefix, CONNECT_S), place, size)

    ReplaceableGroup._open_nccl = open_like_nccl  # type: ignore[method-assign, assignment]

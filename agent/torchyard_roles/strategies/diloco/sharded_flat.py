"""The exchange of a sharded model's parameters by the first rank of its group.

Gathering and distributing whole tensors requires collective calls of all ranks of the group. The first rank cannot make
such calls in the thread in which it exchanges values with other groups. Therefore all ranks call collect() before the
exchange and spread() after it, and the first rank keeps the gathered values in between.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Callable

import torch

from torchyard_roles.checkpoints.sharded_tensors import set_from_first_rank, whole_values
from torchyard_roles.exchange.pinned_copies import pinned_copies_of
from torchyard_roles.strategies.diloco.outer_step import Flat


class ShardedFlat(Flat):
    """DTensors whose values the group's first rank exchanges as one tensor on the CPU.

    Args:
        device: The device that the group's collective calls use.
        is_first: Whether this process is the first rank of its group.
    """

    def __init__(
        self, tensors: list[torch.Tensor], dtype: torch.dtype, *, fragment: int, device: torch.device, is_first: bool
    ) -> None:
        super().__init__(tensors, dtype, is_buffer=False, fragment=fragment)
        self._device = device
        self._is_first = is_first
        self._values: torch.Tensor | None = None
        """The gathered or exchanged values, on the first rank between collect() and spread()."""

    def collect(self) -> None:
        values = torch.empty(self.elements if self._is_first else 0, dtype=self.dtype, device="cpu")
        start = 0
        for tensor in self.tensors:
            whole = whole_values(tensor, self._device)
            if self._is_first:
                part = values[start : start + tensor.numel()]
                if whole.is_cuda:
                    pinned_copies_of(whole.device).to_host([(part, whole)])
                else:
                    part.view(tensor.shape).copy_(whole)
            start += tensor.numel()
        self._values = values if self._is_first else None

    def gather(self) -> torch.Tensor:
        assert self._values is not None
        return self._values.clone()

    def difference(self, outer: torch.Tensor) -> torch.Tensor:
        assert self._values is not None
        return torch.sub(outer, self._values)

    def snapshot(self) -> Callable[[], torch.Tensor]:
        assert self._values is not None
        values = self._values
        self.release()
        return lambda: values

    def recycle(self, values: torch.Tensor) -> None:
        """Does nothing, because the values are gathered in new tensors."""

    def stage(self, values: torch.Tensor) -> None:
        """Does nothing, because spread() distributes the values from the CPU."""

    def scatter(self, values: torch.Tensor, mixing: float = 0.0) -> None:
        self._values = self.gather().mul_(mixing).add_(values, alpha=1 - mixing) if mixing else values

    def spread(self, device: torch.device, *, is_first: bool) -> None:
        start = 0
        for tensor in self.tensors:
            part: torch.Tensor | None = None
            if is_first:
                assert self._values is not None
                part = self._values[start : start + tensor.numel()].view(tensor.shape)
            start += tensor.numel()
            set_from_first_rank(tensor, part, device)
        self._values = None

    def release(self) -> None:
        self._values = None


def sharded_flats(flats: Sequence[Flat], device: torch.device, *, is_first: bool) -> list[Flat]:
    """Returns `flats`, with a ShardedFlat in place of each Flat that consists of DTensors."""
    return [
        ShardedFlat(flat.tensors, flat.dtype, fragment=flat.fragment, device=device, is_first=is_first)
        if any(hasattr(tensor, "device_mesh") for tensor in flat.tensors)
        else flat
        for flat in flats
    ]

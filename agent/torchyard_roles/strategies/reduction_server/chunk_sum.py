"""The sum of one chunk over all ranks, and the memory for the ranks' parts and the sums."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NamedTuple

import torch

WIDER = {torch.float16: torch.float32, torch.bfloat16: torch.float32}
"""The dtypes in which 16-bit gradients are summed."""

At = tuple[int, int, int]
Deliver = Callable[[At, torch.Tensor, float], None]
"""A function that is called with a chunk, its sum, and the time in seconds from this rank's part to the last part."""


class Part(NamedTuple):
    """A rank's contribution to a chunk.

    Attributes:
        owned: Whether the values are in a buffer from the reducer's PartMemory.
    """

    values: torch.Tensor
    owned: bool


class PartMemory:
    """A pool of buffers for parts and sums, because allocating new memory takes longer than receiving the data."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._spare: dict[tuple[int, torch.dtype], list[torch.Tensor]] = {}

    def take(self, size: int, dtype: torch.dtype) -> torch.Tensor:
        with self._lock:
            spare = self._spare.get((size, dtype))
            if spare:
                return spare.pop()
        return torch.empty(size // dtype.itemsize, dtype=dtype, device="cpu")

    def give_back(self, part: Part) -> None:
        if part.owned:
            with self._lock:
                self._spare.setdefault((part.values.nbytes, part.values.dtype), []).append(part.values)

    def give_back_all(self, sums: list[ChunkSum]) -> None:
        """Returns the sums of a finished step to the pool, and frees buffers of sizes that the step did not need."""
        with self._lock:
            self._spare = {kind: self._spare.get(kind, []) for kind in {(each.size, each.dtype) for each in sums}}
            for each in sums:
                if each.result is not None:
                    self._spare[each.size, each.dtype].append(each.result)


class ChunkSum:
    """The sum of one chunk. Callers of the methods must hold `lock`."""

    __slots__ = ("arrived", "dtype", "early", "lock", "next_rank", "result", "size", "takers", "total")

    def __init__(self, size: int, dtype: torch.dtype) -> None:
        self.size = size
        self.dtype = dtype
        self.lock = threading.Lock()
        self.total: torch.Tensor | None = None
        self.next_rank = 0
        # Parts that wait for the parts of lower ranks, if the sum is computed in rank order.
        self.early: dict[int, Part] = {}
        self.arrived: dict[int, float] = {}
        self.takers: dict[int, list[Deliver]] = {}
        self.result: torch.Tensor | None = None

    def add(self, rank: int, part: Part, order: str, memory: PartMemory) -> None:
        if order == "arrival":
            self._accumulate(part, memory)
            return
        self.early[rank] = part
        while self.next_rank in self.early:
            self._accumulate(self.early.pop(self.next_rank), memory)
            self.next_rank += 1

    def _accumulate(self, part: Part, memory: PartMemory) -> None:
        if self.total is not None:
            self.total.add_(part.values)
            memory.give_back(part)
        elif self.dtype in WIDER:
            self.total = part.values.to(WIDER[self.dtype])
            memory.give_back(part)
        elif part.owned:
            self.total = part.values
        else:
            self.total = memory.take(self.size, self.dtype).copy_(part.values)

    def finish(self) -> torch.Tensor:
        """Returns the sum of all parts."""
        assert self.total is not None
        self.result = self.total.to(self.dtype) if self.dtype in WIDER else self.total
        self.total = None
        self.early.clear()
        return self.result

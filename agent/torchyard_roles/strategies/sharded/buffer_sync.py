"""Buffers of sharded models, such as running means, which are set to the first rank's values."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist


def spread_buffers(models: Sequence[torch.nn.Module], device: torch.device) -> None:
    """Sets the buffers of all ranks to the first rank's values."""
    for model in models:
        for buffer in model.buffers():
            values = buffer.detach().to(device).contiguous()
            dist.broadcast(values, src=0)
            buffer.detach().copy_(values)


class ChangingBuffers:
    """The models' buffers. In each step, the buffers that training changes are set to the first rank's values.

    Each rank detects which of its buffers have changed, and `StepFlags` combines these flags of all ranks.
    """

    def __init__(self, models: Sequence[torch.nn.Module]) -> None:
        self._models = list(models)
        self._versions = self._current_versions()
        self._changing: list[int] = []
        """The numbers of the buffers that training changes, which are the same on all ranks."""

    def unchanged(self) -> list[bool]:
        """Returns for each buffer whether it is unchanged on this rank since the last call."""
        before, self._versions = self._versions, self._current_versions()
        return [old == new for old, new in zip(before, self._versions)]

    def note(self, unchanged: Sequence[int]) -> None:
        """Records which buffers are unchanged on all ranks. The other buffers then count as changed by training."""
        self._changing = sorted({*self._changing, *(at for at, same in enumerate(unchanged) if not same)})

    def share(self) -> None:
        """Sets the buffers that training changes to the first rank's values."""
        buffers = self._buffers()
        for number in self._changing:
            if number < len(buffers):
                dist.broadcast(buffers[number].detach(), src=0)

    def _buffers(self) -> list[torch.Tensor]:
        return [buffer for model in self._models for buffer in model.buffers()]

    def _current_versions(self) -> list[tuple[int, int]]:
        """Returns the identity and version counter of each buffer.

        The identity differs if a buffer is replaced, and the version counter if it is changed.
        """
        return [(id(buffer), buffer._version) for buffer in self._buffers()]

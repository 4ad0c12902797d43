"""Decisions that must be the same on all ranks. They are exchanged by one small all-reduce in each step.

A rank contributes one flag for each question, and receives whether all ranks set the flag. The flags for saves and
buffers are read after the next step, when the GPU has computed them. Therefore no step waits for the GPU.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist


class StepFlags:
    """The flags of this rank in each step: gradients are finite, no save is requested, and each buffer is unchanged."""

    def __init__(self, device: torch.device, models: Sequence[torch.nn.Module]) -> None:
        self._device = device
        self._models = list(models)
        self._versions = self._buffer_versions()
        self._changing: list[int] = []
        """The numbers of the buffers that training changes, which are the same on all ranks."""
        self._sent: list[tuple[int, torch.Tensor, torch.cuda.Event | None]] = []
        self._wants_save = False

    def add(self, models: Sequence[torch.nn.Module]) -> None:
        """Adds the buffers of these models."""
        self._models += models
        self._versions = self._buffer_versions()

    def want_save(self) -> None:
        """Requests a save at a step boundary that is the same on all ranks."""
        self._wants_save = True

    def exchange(self, is_finite: torch.Tensor, step: int) -> torch.Tensor:
        """Returns whether `is_finite` is true on all ranks.

        This method also sets buffers to the first rank's values if training is known to change them.
        """
        self._share_buffers()
        versions = self._buffer_versions()
        own = [not self._wants_save, *(old == new for old, new in zip(self._versions, versions))]
        self._versions, self._wants_save = versions, False
        flags = torch.tensor([True, *own], dtype=torch.int32, device="cpu").to(self._device, non_blocking=True)
        flags[0] = is_finite
        dist.all_reduce(flags, op=dist.ReduceOp.MIN)
        ready = None
        result = flags
        if flags.is_cuda:
            result = torch.empty(flags.shape, dtype=flags.dtype, device="cpu", pin_memory=True)
            result.copy_(flags, non_blocking=True)
            ready = torch.cuda.Event()
            ready.record()
        self._sent.append((step, result, ready))
        return flags[0] > 0

    def is_save_due(self, step: int) -> bool:
        """Returns whether a rank requested a save in an earlier step. The result is true once for each request.

        All ranks must call this method at each boundary, and get the same result.
        """
        is_due = False
        while self._sent and self._sent[0][0] < step:
            _, result, ready = self._sent.pop(0)
            if ready is not None:
                ready.synchronize()
            _, no_save, *unchanged = result.tolist()
            self._changing = sorted({*self._changing, *(at for at, same in enumerate(unchanged) if not same)})
            if not no_save:
                is_due = True
        return is_due

    def _buffers(self) -> list[torch.Tensor]:
        return [buffer for model in self._models for buffer in model.buffers()]

    def _buffer_versions(self) -> list[tuple[int, int]]:
        """Returns the identity and version counter of each buffer.

        One of them differs if a buffer is changed or replaced.
        """
        return [(id(buffer), buffer._version) for buffer in self._buffers()]

    def _share_buffers(self) -> None:
        buffers = self._buffers()
        for number in self._changing:
            if number < len(buffers):
                dist.broadcast(buffers[number].detach(), src=0)

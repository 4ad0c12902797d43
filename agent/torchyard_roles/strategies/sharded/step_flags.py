"""Decisions that must be the same on all ranks, made by one small all-reduce in each step.

A rank contributes one flag for each decision, and learns whether all ranks have set the flag. The flags for saves and
buffers are read after the next step, when the GPU has computed them. Therefore no step waits for the GPU.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist

from torchyard_roles.strategies.sharded.buffer_sync import ChangingBuffers


class StepFlags:
    """The flags of this rank in each step: gradients are finite, no save is requested, and each buffer is unchanged."""

    def __init__(self, device: torch.device, models: Sequence[torch.nn.Module]) -> None:
        self._device = device
        self.buffers = ChangingBuffers(models)
        self._sent: list[tuple[int, torch.Tensor, torch.cuda.Event | None]] = []
        self._wants_save = False

    def want_save(self) -> None:
        """Requests a save at a step boundary that is the same on all ranks."""
        self._wants_save = True

    def exchange(self, is_finite: torch.Tensor, step: int) -> torch.Tensor:
        """Returns whether `is_finite` is true on all ranks.

        This method also sets buffers to the first rank's values if training is known to change them.
        """
        self.buffers.share()
        own = [not self._wants_save, *self.buffers.unchanged()]
        self._wants_save = False
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
            self.buffers.note(unchanged)
            if not no_save:
                is_due = True
        return is_due

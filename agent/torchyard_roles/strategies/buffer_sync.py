"""Synchronizes models' buffers, such as running means, by setting changed buffers to the first rank's values."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from torchyard_roles.strategies.parameter_check import are_alike, is_same


class SyncedBuffers:
    """The buffers of all models, with copies of the values that were last equal on all ranks."""

    def __init__(self) -> None:
        self._places: list[tuple[torch.nn.Module, str]] = []
        self._copies: list[torch.Tensor | None] = []
        """Copies of the buffers, with which changed() compares the current values.

        For a buffer on a GPU, None takes the place of the copy, because a comparison would wait for the GPU.
        """

    def add(self, model: torch.nn.Module) -> None:
        """Adds the buffers of a model, except buffers that were added before."""
        seen = {(id(module), name) for module, name in self._places}
        self._places += [
            (module, name)
            for module in model.modules()
            for name, value in module._buffers.items()
            if value is not None and (id(module), name) not in seen
        ]

    def __len__(self) -> int:
        return len(self._places)

    def values(self) -> list[torch.Tensor]:
        """Returns the current buffers. Modules may have replaced buffers since add().

        The tensors are accessed through `.data`, so that autograd does not track updates of buffers. A tracked update
        would make a backward pass fail, even if the pass does not use the buffer's values.
        """
        return [module._buffers[name].data for module, name in self._places]

    def changed(self) -> list[int]:
        """Returns for each buffer whether it may have changed since note().

        Values are compared bitwise, so a NaN that has not changed is equal to itself.
        """
        return [
            copy is None or not (are_alike(value, copy) and is_same(value, copy))
            for value, copy in zip(self.values(), self._copies)
        ]

    def note(self, changed: Sequence[int] | None = None) -> None:
        """Copies the current values of all buffers, or only of the buffers that `changed` marks."""
        before = self._copies
        self._copies = [
            before[number] if changed is not None and not changed[number] else _copy(value)
            for number, value in enumerate(self.values())
        ]


def _copy(value: torch.Tensor) -> torch.Tensor | None:
    return value.clone() if value.device.type == "cpu" else None

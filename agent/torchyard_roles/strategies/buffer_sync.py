"""Buffers of the models, such as running means, which all ranks take from the first one after they change."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from torchyard_roles.strategies.parameter_check import are_alike, is_same


class SyncedBuffers:
    """The buffers, with copies of their last common values."""

    def __init__(self) -> None:
        self._places: list[tuple[torch.nn.Module, str]] = []
        self._copies: list[torch.Tensor | None] = []
        """None for a buffer on a GPU, where a comparison would block."""

    def add(self, model: torch.nn.Module) -> None:
        """Add the buffers of a model that are not included yet."""
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
        """The current buffers, which modules may have replaced.

        Through `.data`: autograd must not count updates of a buffer that a graph has saved without using it.
        """
        return [module._buffers[name].data for module, name in self._places]

    def changed(self) -> list[int]:
        """For each buffer, whether it may have changed since note(). An unchanged NaN is equal."""
        return [
            copy is None or not (are_alike(value, copy) and is_same(value, copy))
            for value, copy in zip(self.values(), self._copies)
        ]

    def note(self, changed: Sequence[int] | None = None) -> None:
        """Copy the current values, of all buffers or of those that have changed."""
        before = self._copies
        self._copies = [
            before[number] if changed is not None and not changed[number] else _copy(value)
            for number, value in enumerate(self.values())
        ]


def _copy(value: torch.Tensor) -> torch.Tensor | None:
    return value.clone() if value.device.type == "cpu" else None

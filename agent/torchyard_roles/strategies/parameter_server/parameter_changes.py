"""Which parameters the training script has changed by itself, outside optimizer.step(): clamped, scaled, loaded.

Each parameter is compared with a copy of what the last step left in it, bit by bit. Tensors' version counters cannot
tell, since changes through `.data` do not count there. The copy lies beside the parameter, in its device's memory; to
compare and to copy in a step takes 0.14 core-seconds per GB of parameters on the CPU that this was measured on.
"""

from __future__ import annotations

import ctypes
import zlib
from collections.abc import Sequence

import torch

from torchyard_roles.errors import UsageProblem

WHOLE = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""By bytes of an element: NaNs are equal to themselves as whole numbers."""


class InstalledParameters:
    """What the parameters called `names` held after the last step. Both sequences may grow."""

    def __init__(self, names: Sequence[str], parameters: Sequence[torch.nn.Parameter]) -> None:
        self._names = names
        self._parameters = parameters
        self._values: list[torch.Tensor] = []

    def note(self) -> None:
        """A step has ended, or something else has installed parameters: what they hold is no change of the script's.

        Autograd hears of those that are new, as it does of an optimizer's steps: what was received into a parameter's
        own memory has counted nowhere. A parameter that no step has changed can still be in a graph.
        """
        for number, parameter in enumerate(self._parameters):
            value = parameter.detach()
            if number == len(self._values):
                self._values.append(value.clone())
            elif not _fits(value, self._values[number]):
                self._values[number] = value.clone()
            elif not _is_same(value, self._values[number]):
                self._values[number].copy_(value)
                torch.autograd.graph.increment_version(parameter)

    def check(self) -> None:
        """Raises UsageProblem for a parameter that has another shape, dtype or device than when note() was called."""
        for name, parameter, noted in zip(self._names, self._parameters, self._values):
            if not _fits(parameter, noted):
                raise UsageProblem(
                    f"The parameter {name} was {_kind(noted)} when the last step ended, and is now {_kind(parameter)}.",
                    "Change the model's dtypes, sizes and devices before distribute().",
                )

    def changed(self) -> list[int]:
        """Numbers of the parameters that hold something else than when note() was called, but for those that check()
        finds: a script may move or round its model when it has trained it."""
        return [
            number
            for number, (parameter, noted) in enumerate(zip(self._parameters, self._values))
            if _fits(parameter, noted) and not _is_same(parameter.detach(), noted)
        ]


def checksum(values: torch.Tensor) -> int:
    """Of a contiguous tensor on the CPU."""
    size = values.numel() * values.element_size()
    return zlib.crc32((ctypes.c_char * size).from_address(values.data_ptr())) if size else 0


def _fits(one: torch.Tensor, other: torch.Tensor) -> bool:
    return (one.shape, one.dtype, one.device) == (other.shape, other.dtype, other.device)


def _kind(tensor: torch.Tensor) -> str:
    return (
        f"{'×'.join(map(str, tensor.shape)) or 'a number'} of {str(tensor.dtype).partition('.')[2]} on {tensor.device}"
    )


def _is_same(value: torch.Tensor, noted: torch.Tensor) -> bool:
    size = value.element_size()
    if value.is_complex():
        value, noted, size = torch.view_as_real(value), torch.view_as_real(noted), size // 2
    places = (value.storage_offset(), noted.storage_offset(), value.numel())
    if value.is_contiguous() and noted.is_contiguous() and not any(place * size % 8 for place in places):
        return bool(torch.equal(value.view(-1).view(torch.int64), noted.view(-1).view(torch.int64)))  # twice as fast
    return bool(torch.equal(value.view(WHOLE[size]), noted.view(WHOLE[size])))

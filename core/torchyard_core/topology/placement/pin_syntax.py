"""Syntax of pins and of other references to GPUs: a host, or GPUs of a host (`HOST:0-3`)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_HOST = re.compile(r"[^\s:/]+")
MAX_GPU_INDEX = 1023


@dataclass(frozen=True, slots=True)
class GpuChoice:
    """A host and some of its GPUs. `indices` is None for any GPU, and empty for no GPU."""

    host: str
    indices: tuple[int, ...] | None = None
    every: bool = False
    """Whether the text means all GPUs of the host: `HOST:*`."""


def parse_pin(text: str) -> GpuChoice:
    """Parses `HOST`, `HOST:2`, `HOST:0-3`, `HOST:0,2`, `HOST:*` or `HOST:cpu`. Raises ValueError for other text."""
    host, colon, gpus = text.strip().partition(":")
    if not _HOST.fullmatch(host):
        raise ValueError(f"'{text}' is not a host, or a host and its GPUs like `gpu-b:2` or `gpu-b:0-3`")
    if not colon:
        return GpuChoice(host)
    if gpus == "*":
        return GpuChoice(host, every=True)
    if gpus == "cpu":
        return GpuChoice(host, ())
    return GpuChoice(host, _indices(gpus, text))


def pin_text(host: str, gpus: Sequence[int]) -> str:
    """Returns the pin to GPUs of a host, such as `gpu-b:2,5`, or to the host if `gpus` is empty."""
    return f"{host}:{','.join(map(str, sorted(gpus)))}" if gpus else host


def _indices(gpus: str, text: str) -> tuple[int, ...]:
    found: list[int] = []
    for part in gpus.split(","):
        match = re.fullmatch(r"\s*([0-9]{1,4})(?:-([0-9]{1,4}))?\s*", part)
        if match is None:
            raise ValueError(f"in '{text}' the GPUs must be numbers, like `gpu-b:2`, `gpu-b:0-3` or `gpu-b:0,2`")
        first, last = int(match[1]), int(match[2] or match[1])
        if first > last:
            raise ValueError(f"in '{text}' the range {first}-{last} runs backwards")
        if last > MAX_GPU_INDEX:
            raise ValueError(f"in '{text}' there is no GPU {last}")
        found += range(first, last + 1)
    if len(set(found)) != len(found):
        raise ValueError(f"'{text}' names a GPU twice")
    return tuple(found)

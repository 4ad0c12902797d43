"""What the replicas of a run come to together. No Qt."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence

from torchyard_gui.bridge.run_state_types import Track

TOTALS = ("throughput", "loss", "gpu", "memory_mb", "gpu_memory_mb", "step")
SUMS = ("throughput", "memory_mb", "gpu_memory_mb")
TRAINERS = ("chief", "worker")
OF_TRAINERS = ("throughput", "loss", "step")


def known(tracks: Iterable[Track], name: str) -> list[float]:
    """The newest value of each replica that has reported one; NaN where it is not finite."""
    values = (track.ring.last(name) for track in tracks)
    return [value for value in values if value is not None]


def told(tracks: Iterable[Track], name: str) -> list[float]:
    """The same, finite ones only."""
    return [value for value in known(tracks, name) if not math.isnan(value)]


def those_asked(tracks: Iterable[Track], name: str) -> list[Track]:
    """The replicas that can have a value of this name."""
    if name in OF_TRAINERS:
        return [track for track in tracks if track.role in TRAINERS]
    return [track for track in tracks if track.gpus or not name.startswith("gpu")]


def add_up(tracks: Sequence[Track], *, is_whole: bool = True) -> dict[str, float | None]:
    """`step` (the most), `loss` (the first trainer's), `gpu` (median) and the sums, from what each told last.

    Where the tracks are not the whole run, sums are None: one without a part of it would be a lie.
    """
    found: dict[str, float | None] = {}
    for name in TOTALS:
        asked = those_asked(tracks, name)
        values = known(asked, name) if name == "loss" else told(asked, name)
        if not values or (name in SUMS and not is_whole):
            found[name] = None
        elif name in SUMS:
            found[name] = sum(values)
        elif name == "step":
            found[name] = max(values)
        else:
            found[name] = values[0] if name == "loss" else statistics.median(values)
    return found

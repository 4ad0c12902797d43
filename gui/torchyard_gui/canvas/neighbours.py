"""Which chip the arrow keys reach from which. Pure geometry."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from torchyard_gui.canvas.geometry import Box

Direction = Literal["left", "right", "up", "down"]

ASIDE = 3.0
"""How much farther a step to the side counts than one ahead."""


def neighbour(boxes: Mapping[str, Box], start: str, direction: Direction) -> str | None:
    """The nearest chip in that direction; None at the edge."""
    box = boxes[start]
    x, y = box.middle
    best: tuple[float, str] | None = None
    for name, other in boxes.items():
        if name == start:
            continue
        ox, oy = other.middle
        if direction in ("left", "right"):
            ahead = ox - x if direction == "right" else x - ox
            aside = _apart(box.y, box.bottom, other.y, other.bottom)
        else:
            ahead = oy - y if direction == "down" else y - oy
            aside = _apart(box.x, box.right, other.x, other.right) + abs(ox - x) / 1000
        if ahead < 1:
            continue
        merit = ahead + ASIDE * aside
        if best is None or merit < best[0]:
            best = merit, name
    return best[1] if best else None


def _apart(start: float, end: float, other_start: float, other_end: float) -> float:
    """How far two stretches are from overlapping."""
    return max(0.0, other_start - end, start - other_end)

"""Rectangles as plain values, which do not depend on Qt."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Box(NamedTuple):
    """A rectangle. `QRectF(*box)` converts a box to Qt's type."""

    x: float
    y: float
    width: float
    height: float

    @property
    def right(self) -> float:
        return self.x + self.width

    @property
    def bottom(self) -> float:
        return self.y + self.height

    @property
    def middle(self) -> tuple[float, float]:
        return self.x + self.width / 2, self.y + self.height / 2

    def has(self, x: float, y: float) -> bool:
        left, top, width, height = self  # Unpacking is faster than attribute access; this runs on every mouse move.
        return 0 <= x - left < width and 0 <= y - top < height

    def meets(self, other: Box) -> bool:
        """Returns whether this box and the other box overlap."""
        return self.x < other.right and other.x < self.right and self.y < other.bottom and other.y < self.bottom

    def moved(self, x: float, y: float) -> Box:
        return Box(self.x + x, self.y + y, self.width, self.height)

    def grown(self, by: float) -> Box:
        return Box(self.x - by, self.y - by, self.width + 2 * by, self.height + 2 * by)


def around(boxes: Iterable[Box]) -> Box:
    """Returns the smallest box that contains all boxes, or an empty box if there are none."""
    every = list(boxes)
    if not every:
        return Box(0, 0, 0, 0)
    left, top = min(box.x for box in every), min(box.y for box in every)
    return Box(left, top, max(box.right for box in every) - left, max(box.bottom for box in every) - top)

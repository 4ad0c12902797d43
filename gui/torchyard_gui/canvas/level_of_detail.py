"""The levels of detail, one of which is chosen according to the zoom."""

from __future__ import annotations

from enum import Enum

ZOOM_LEAST, ZOOM_MOST = 0.05, 4.0
FULL_FROM = 0.62
COARSE_FROM = 0.33


class Level(Enum):
    FULL = "full"
    """All labels and symbols are shown."""
    COARSE = "coarse"
    """Badges and numbers are enlarged so that they stay readable."""
    TILE = "tile"
    """Each rack is a tile with a cell for each GPU and for each replica without a GPU."""


def level_of(zoom: float) -> Level:
    if zoom >= FULL_FROM:
        return Level.FULL
    return Level.COARSE if zoom >= COARSE_FROM else Level.TILE

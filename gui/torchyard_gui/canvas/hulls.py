"""Frames round the replicas of one group in a rack: a light ground behind chips, in one piece where they touch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from PySide6.QtCore import QRectF
from PySide6.QtGui import QPainter, QPainterPath, QPen

from torchyard_gui.canvas.geometry import Box
from torchyard_gui.canvas.racks.content import ChipContent
from torchyard_gui.theme.theme import theme
from torchyard_gui.theme.tokens import METRICS as M

REACH = 3.0
"""How far a frame reaches out of its chips: less than half a gap, so that two frames never touch."""
ROUND = float(M.radius)

Key = tuple[bool, int]
"""Whether it is trainers' group, and its number."""


def groups_in(chips: Iterable[ChipContent]) -> dict[Key, list[str]]:
    """Replicas by their groups, in the rack's order; those of none are left out."""
    found: dict[Key, list[str]] = {}
    for chip in chips:
        if chip.group is not None:
            found.setdefault((chip.trains, chip.group), []).append(chip.name)
    return found


def hull(boxes: Sequence[Box]) -> QPainterPath:
    """The outline round boxes, with the gaps between those that are neighbours filled."""
    path = QPainterPath()
    for box in boxes:
        path.addRoundedRect(QRectF(*box.grown(REACH)), ROUND, ROUND)
    gap = M.slot_gap
    for box in boxes:
        right = [other for other in boxes if other.y == box.y and other.x == box.right + gap]
        below = [
            other for other in boxes if other.y == box.bottom + gap and other.x < box.right and box.x < other.right
        ]
        # Into both chips as far as their corners are round: no notch is left.
        bridges = [QRectF(box.right - ROUND, box.y - REACH, gap + 2 * ROUND, box.height + 2 * REACH) for _ in right]
        for other in below:
            left, end = max(box.x, other.x), min(box.right, other.right)
            bridges.append(QRectF(left - REACH, box.bottom - ROUND, end - left + 2 * REACH, gap + 2 * ROUND))
        if right and below:
            bridges.append(QRectF(box.right, box.bottom, gap, gap))
        for bridge in bridges:
            piece = QPainterPath()
            piece.addRect(bridge)
            path = path.united(piece)
    return path.simplified()


def paint_hulls(painter: QPainter, groups: Mapping[Key, Sequence[str]], boxes: Mapping[str, Sequence[Box]]) -> None:
    """Paints each group's frame; chips go over it."""
    for members in groups.values():
        around = [box for name in members for box in boxes.get(name, ())]
        if around:
            painter.setPen(QPen(theme().color("line", 0.6), 1.0))
            painter.setBrush(theme().brush("track"))
            painter.drawPath(hull(around))

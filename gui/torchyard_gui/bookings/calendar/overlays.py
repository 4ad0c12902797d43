"""Overlays painted over the calendar: numbered proposals, the preview of an edit, and the keyboard cursor."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from PySide6.QtCore import QPointF, QRectF, Qt
from PySide6.QtGui import QPainter, QPen

from torchyard_core.booking.search.slot_search import Fit
from torchyard_gui.bookings.calendar.lanes import Lanes
from torchyard_gui.bookings.calendar.time_axis import Axis
from torchyard_gui.theme.theme import theme
from torchyard_gui.theme.tokens import METRICS as M

Box = tuple[int, int, float, float]
"""The top and bottom of a rectangle in pixels, and its start and end in seconds since 1970."""


@dataclass(frozen=True)
class Overlay:
    """A proposed or previewed booking with its boxes. `reason` says why the booking would be refused, or is ""."""

    boxes: tuple[Box, ...]
    caption: str = ""
    reason: str = ""
    number: int = 0
    """Number of a proposed booking, from 1; 0 for a preview."""
    is_chosen: bool = False


def boxes_of(gpus: Iterable[str], start: float, end: float, lanes: Lanes) -> tuple[Box, ...]:
    """Returns the boxes of GPUs from `start` to `end`. Adjacent lanes are merged into one box. The GPUs of a folded
    host share the box of the host's row.
    """
    strips: set[tuple[int, int]] = set()
    folded = {slot.id: row for row in lanes.rows if row.kind == "folded" for slot in row.slots}
    for gpu in gpus:
        row = lanes.lane_of.get(gpu) or folded.get(gpu)
        if row is not None:
            strips.add((row.top, row.bottom))
    merged: list[tuple[int, int]] = []
    for top, bottom in sorted(strips):
        if merged and merged[-1][1] == top:
            merged[-1] = (merged[-1][0], bottom)
        else:
            merged.append((top, bottom))
    return tuple((top, bottom, start, end) for top, bottom in merged)


def fit_overlays(fits: Sequence[Fit], lanes: Lanes, chosen: int) -> tuple[Overlay, ...]:
    """Returns a numbered overlay for each proposed booking. `chosen` is the index of the selected booking."""
    return tuple(
        Overlay(
            boxes_of(fit.gpus, fit.start.timestamp(), fit.end.timestamp(), lanes),
            number=number + 1,
            is_chosen=number == chosen,
        )
        for number, fit in enumerate(fits)
    )


def paint_overlays(painter: QPainter, ghosts: Iterable[Overlay], axis: Axis) -> None:
    """Paints overlays with their numbers."""
    look = theme()
    painter.setRenderHint(QPainter.RenderHint.Antialiasing)
    for ghost in ghosts:
        token = "fail" if ghost.reason else "accent"
        pen = QPen(look.color(token), 2 if ghost.is_chosen else 1.5)
        if not ghost.is_chosen:
            pen.setDashPattern([3, 2])
        painter.setPen(pen)
        painter.setBrush(look.color(token, 0.28 if ghost.is_chosen else 0.12 if ghost.number else 0.20))
        for top, bottom, start, end in _in_sight(ghost.boxes, axis):
            x = axis.x_of(start)
            box = QRectF(x + 1, top + 1.5, max(axis.x_of(end) - x - 2, 3), bottom - top - 3)
            painter.setPen(pen)
            painter.drawRoundedRect(box, M.block_radius, M.block_radius)
            if ghost.number:
                _number(painter, box.center(), ghost.number, min(18.0, box.width(), box.height()))
                painter.setBrush(look.color(token, 0.28 if ghost.is_chosen else 0.12))
    painter.setRenderHint(QPainter.RenderHint.Antialiasing, False)


def _number(painter: QPainter, center: QPointF, number: int, size: float) -> None:
    look = theme()
    circle = QRectF(center.x() - size / 2, center.y() - size / 2, size, size)
    painter.setPen(Qt.PenStyle.NoPen)
    painter.setBrush(look.brush("accent"))
    painter.drawEllipse(circle)
    painter.setPen(look.pen("on_accent"))
    painter.setFont(look.font("tiny"))
    painter.drawText(circle, Qt.AlignmentFlag.AlignCenter, str(number))


def paint_cursor(painter: QPainter, boxes: Sequence[Box], axis: Axis) -> None:
    """Paints the keyboard cursor as an outline 2 px wide."""
    painter.setRenderHint(QPainter.RenderHint.Antialiasing)
    painter.setBrush(Qt.BrushStyle.NoBrush)
    painter.setPen(QPen(theme().color("text"), M.focus_ring))
    for top, bottom, start, end in _in_sight(boxes, axis):
        x = axis.x_of(start)
        painter.drawRoundedRect(QRectF(x - 1, top, max(axis.x_of(end) - x + 2, 5), bottom - top - 1), 4, 4)
    painter.setRenderHint(QPainter.RenderHint.Antialiasing, False)


def _in_sight(boxes: Iterable[Box], axis: Axis) -> list[Box]:
    """Returns the boxes that overlap the shown days."""
    since, until = axis.starts[0], axis.days[-1].end
    return [box for box in boxes if box[2] < until and box[3] > since]

"""Where an edge ends at a rack: ○ a host that trains, ■ one that serves, ⊡ one that does both; and pills on lines."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QPointF, QRectF, Qt
from PySide6.QtGui import QColor, QPainter, QPen

from torchyard_gui.canvas import paint_cache
from torchyard_gui.canvas.edges.gutters import Point
from torchyard_gui.theme.theme import theme

PORT = 5.0
DOT = 2.0
PILL_LINE = 13.0
PILL_PAD = 7.0


def paint_port(painter: QPainter, at: Point, does: str, color: QColor) -> None:
    """One end of an edge. It covers the end of its line, so it does not let through."""
    middle = QPointF(*at)
    painter.setPen(QPen(color, 2))
    painter.setBrush(color if does == "serves" else theme().brush("s2"))
    if does == "trains":
        painter.drawEllipse(middle, PORT, PORT)
        return
    painter.drawRoundedRect(QRectF(at[0] - PORT + 0.5, at[1] - PORT + 0.5, 2 * PORT - 1, 2 * PORT - 1), 1.5, 1.5)
    if does == "both":
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(color)
        painter.drawRect(QRectF(at[0] - DOT, at[1] - DOT, 2 * DOT, 2 * DOT))


def pill_box(at: Point, lines: Sequence[str]) -> QRectF:
    """The room that a pill takes on a line, its middle at `at`."""
    width = max(paint_cache.width_of(line, "tiny") for line in lines) + 2 * PILL_PAD
    height = PILL_LINE * len(lines) + 5
    return QRectF(at[0] - width / 2, at[1] - height / 2, width, height)


def paint_pill(painter: QPainter, at: Point, lines: Sequence[str], token: str = "hair") -> None:
    """A few words that lie on a line."""
    box = pill_box(at, lines)
    painter.setPen(paint_cache.outline(token))
    painter.setBrush(theme().brush("s1"))
    painter.drawRoundedRect(box, min(9.0, box.height() / 2), min(9.0, box.height() / 2))
    painter.setPen(theme().color("text2"))
    painter.setFont(paint_cache.font("tiny"))
    for number, line in enumerate(lines):
        x = at[0] - paint_cache.width_of(line, "tiny") / 2
        painter.drawText(QPointF(x, box.y() + 13 + number * PILL_LINE), line)

"""Paints log lines: names of logs, colours by level, the selection, and matches of a search."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache

from PySide6.QtCore import QRect
from PySide6.QtGui import QFont, QFontMetricsF, QPainter

from torchyard_gui.runs.logs.log_levels import color_token
from torchyard_gui.runs.logs.log_merge import Place, PlacedLine
from torchyard_gui.theme.theme import theme

FAMILIES = ("JetBrains Mono", "DejaVu Sans Mono", "Menlo", "Consolas")
SIZE = 12
GAP = 12
"""Distance in pixels between a log's name and its line."""


@cache
def mono() -> QFont:
    """Returns the font of log lines."""
    font = QFont()
    font.setFamilies([*FAMILIES])
    font.setStyleHint(QFont.StyleHint.Monospace)
    font.setPixelSize(SIZE)
    return font


def line_height() -> float:
    return QFontMetricsF(mono()).height() + 4


def width_of(text: str) -> int:
    return round(QFontMetricsF(mono()).horizontalAdvance(text))


def paint_lines(
    painter: QPainter,
    rect: QRect,
    lines: Sequence[PlacedLine],
    left: int,
    hit: str,
    selected: tuple[Place, Place] | None,
) -> None:
    """Paints lines from the top of `rect`.

    Args:
        selected: Places of the first and the last selected line.
        hit: The text whose occurrences are highlighted, regardless of case.
    """
    look = theme()
    painter.fillRect(rect, look.color("s2"))
    painter.setFont(mono())
    height, ascent = line_height(), QFontMetricsF(mono()).ascent() + 2
    for row, line in enumerate(lines):
        y = round(row * height)
        across = QRect(0, y, rect.width(), round(height))
        if selected is not None and selected[0] <= line.place <= selected[1]:
            painter.fillRect(across, look.color("accent_soft"))
        if hit:
            _paint_hits(painter, line.line.text, left, across, hit)
        painter.setPen(look.pen(color_token(line.line.text)))
        painter.drawText(left, round(y + ascent), line.line.text)


def paint_names(painter: QPainter, rect: QRect, lines: Sequence[PlacedLine], left: int) -> None:
    """Paints the name of the log before each line. Repeated names are paler."""
    look = theme()
    painter.fillRect(rect, look.color("s1"))
    painter.setPen(look.pen("hair"))
    painter.drawLine(rect.topRight(), rect.bottomRight())
    painter.setFont(mono())
    height, ascent = line_height(), QFontMetricsF(mono()).ascent() + 2
    before = ""
    for row, line in enumerate(lines):
        painter.setPen(look.pen("text2" if line.name != before else "text3"))
        painter.drawText(left, round(row * height + ascent), line.name)
        before = line.name


def _paint_hits(painter: QPainter, text: str, left: int, rect: QRect, wanted: str) -> None:
    metrics = QFontMetricsF(mono())
    for begin, end in matches(text, wanted):
        x, width = metrics.horizontalAdvance(text[:begin]), metrics.horizontalAdvance(text[begin:end])
        mark = QRect(round(left + x), rect.y(), round(width), rect.height())
        painter.fillRect(mark, theme().color("accent", 0.3))


def matches(text: str, wanted: str) -> list[tuple[int, int]]:
    """Returns where a line contains a string, ignoring the case of ASCII letters, as the search in the logs does."""
    return [found.span() for found in re.finditer(re.escape(wanted), text, re.IGNORECASE | re.ASCII)]

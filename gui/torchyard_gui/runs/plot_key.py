"""What a curve looks like, and its entry in the legend."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtGui import QPainter, QPaintEvent, QPen
from PySide6.QtWidgets import QHBoxLayout, QWidget

from torchyard_gui.theme.theme import theme
from torchyard_gui.widgets import label

COLOURS = ("worker", "chief", "reducer", "evaluator", "wait", "accent", "run", "text2")
"""Of the curves in turn; the second eight are dashed."""


def curve_pen(number: int) -> QPen:
    """Of width 1: a wider one costs seconds a frame."""
    pen = QPen(theme().pen(COLOURS[number % len(COLOURS)]))
    pen.setCosmetic(True)
    if number >= len(COLOURS):
        pen.setStyle(Qt.PenStyle.DashLine)
    return pen


class PlotKey(QWidget):
    """A curve's line and name."""

    def __init__(self, name: str, number: int):
        super().__init__()
        self._number = number
        layout = QHBoxLayout(self)
        layout.setContentsMargins(20, 0, 0, 0)
        layout.addWidget(label(name, role="small", ink="2"))
        theme().changed.connect(self.update)

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        pen = curve_pen(self._number)
        pen.setWidth(2)
        painter.setPen(pen)
        middle = self.height() // 2
        painter.drawLine(0, middle, 14, middle)

"""Moving the view with the middle button, or the left one while Space is held."""

from __future__ import annotations

from PySide6.QtCore import QPoint, Qt
from PySide6.QtWidgets import QGraphicsView

from torchyard_gui.widgets.gesture import Gesture


class Pan(Gesture):
    cursor = Qt.CursorShape.ClosedHandCursor

    def __init__(self, view: QGraphicsView, position: QPoint):
        self._across = view.horizontalScrollBar()
        self._down = view.verticalScrollBar()
        self._origin = QPoint(self._across.value(), self._down.value())
        self._start = position

    def move(self, position: QPoint) -> None:
        moved = position - self._start
        self._across.setValue(self._origin.x() - moved.x())
        self._down.setValue(self._origin.y() - moved.y())

    def finish(self, position: QPoint) -> None:
        self.move(position)

    def cancel(self) -> None:
        self.move(self._start)

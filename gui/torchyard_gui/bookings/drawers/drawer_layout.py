"""Layout of calendar and drawers: side by side, or the drawer above the calendar in a narrow window."""

from __future__ import annotations

from collections.abc import Iterable

from PySide6.QtCore import QRect, Signal
from PySide6.QtGui import QPainter, QPaintEvent, QResizeEvent
from PySide6.QtWidgets import QWidget

from torchyard_gui.theme.theme import theme
from torchyard_gui.theme.tokens import METRICS


class DrawerLayout(QWidget):
    """Container of the views and drawers; `place` lays out the open one."""

    resized = Signal()

    def __init__(self, parent: QWidget | None = None):
        super().__init__(parent)
        self._views: tuple[QWidget, ...] = ()

    def hold(self, views: Iterable[QWidget], drawers: Iterable[QWidget]) -> None:
        """Sets views and drawers; all begin hidden."""
        self._views = tuple(views)
        for widget in (*self._views, *drawers):
            widget.setParent(self)
            widget.hide()

    def place(self, drawer: QWidget | None, *, narrow: bool) -> None:
        room = self.rect()
        beside = METRICS.drawer if drawer is not None and not narrow else 0
        for view in self._views:
            view.setGeometry(QRect(0, 0, room.width() - beside, room.height()))
        if drawer is not None:
            drawer.setGeometry(QRect(room.width() - METRICS.drawer, 0, METRICS.drawer, room.height()))

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self.resized.emit()

    def paintEvent(self, event: QPaintEvent) -> None:
        QPainter(self).fillRect(self.rect(), theme().color("s0"))

"""Base class of the drawers, and the layout of the calendar and the drawers."""

from __future__ import annotations

from collections.abc import Iterable

from PySide6.QtCore import QRect, Qt, Signal
from PySide6.QtGui import QKeyEvent, QPainter, QPaintEvent, QResizeEvent
from PySide6.QtWidgets import QFrame, QWidget

from torchyard_gui.theme.theme import theme
from torchyard_gui.theme.tokens import METRICS
from torchyard_gui.widgets import ElidedLabel, scroll_area
from torchyard_gui.widgets.buttons import tool_button
from torchyard_gui.widgets.layouts import FLUSH, hbox, vbox


class Drawer(QFrame):
    """A drawer whose content is the layout `body`. The close button and Esc emit `closed`."""

    closed = Signal()

    def __init__(self, title: str, parent: QWidget | None = None):
        super().__init__(parent)
        self.setProperty("panel", "right")
        self.setAutoFillBackground(True)
        self.setFixedWidth(METRICS.drawer)
        self.setAccessibleName(title)
        self.title = ElidedLabel(title, role="title")
        self.cross = tool_button("close", self.tr("Close (Esc)"), self.closed)
        contents = QWidget()
        self.body = vbox(parent=contents, margins=(14, 4, 14, 14), spacing=8)
        head = hbox((self.title, 1), self.cross, margins=(14, 10, 8, 4))
        self.column = vbox(head, (scroll_area(contents), 1), parent=self, margins=FLUSH, spacing=0)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() == Qt.Key.Key_Escape:
            self.closed.emit()
            return
        super().keyPressEvent(event)


class DrawerLayout(QWidget):
    """Widget that lays out the calendar's views and the drawers.

    In a narrow window, an open drawer covers part of the current view.
    """

    resized = Signal()

    def __init__(self, parent: QWidget | None = None):
        super().__init__(parent)
        self._views: tuple[QWidget, ...] = ()

    def hold(self, views: Iterable[QWidget], drawers: Iterable[QWidget]) -> None:
        """Sets the views and the drawers, which are all hidden initially."""
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

"""Base class of the drawers: a title, a close button and a body."""

from __future__ import annotations

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QKeyEvent
from PySide6.QtWidgets import QFrame, QWidget

from torchyard_gui.theme.tokens import METRICS
from torchyard_gui.widgets import ElidedLabel, scroll_area
from torchyard_gui.widgets.buttons import tool_button
from torchyard_gui.widgets.layouts import FLUSH, hbox, vbox


class Drawer(QFrame):
    """A drawer with its content in `body`. Emits `closed` on its cross or Esc."""

    closed = Signal()

    def __init__(self, title: str, parent: QWidget | None = None):
        super().__init__(parent)
        self.setProperty("panel", "right")
        self.setAutoFillBackground(True)
        self.setFixedWidth(METRICS.drawer)
        self.setAccessibleName(title)
        self.title = ElidedLabel(title)
        self.title.setProperty("role", "title")
        self.cross = tool_button("close", self.tr("Close (Esc)"), self.closed, by_tab=True)
        contents = QWidget()
        contents.setObjectName("contents")
        self.body = vbox(parent=contents, margins=(14, 4, 14, 14), spacing=8)
        head = hbox((self.title, 1), self.cross, margins=(14, 10, 8, 4))
        vbox(head, (scroll_area(contents), 1), parent=self, margins=FLUSH, spacing=0)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() == Qt.Key.Key_Escape:
            self.closed.emit()
            return
        super().keyPressEvent(event)

"""A short message near the lower edge of a window that disappears by itself."""

from __future__ import annotations

from PySide6.QtCore import QEvent, QObject, Qt, QTimer
from PySide6.QtWidgets import QFrame, QLabel, QWidget

from torchyard_gui.widgets.layouts import hbox
from torchyard_gui.widgets.screen_reader import announce

SHOWN_FOR_MS = 4000


class Toast(QFrame):
    """One per window: a new message replaces the last one and is announced. Not for messages that need an answer."""

    def __init__(self, parent: QWidget) -> None:
        super().__init__(parent)
        self.setProperty("toast", True)
        self.setAttribute(Qt.WidgetAttribute.WA_TransparentForMouseEvents)
        self.label = QLabel(self)
        self.label.setTextFormat(Qt.TextFormat.PlainText)
        hbox(self.label, parent=self, margins=(14, 8, 14, 8))
        self._timer = QTimer(self, singleShot=True)
        self._timer.timeout.connect(self.hide)
        self._around = parent
        parent.installEventFilter(self)
        self.hide()

    def say(self, text: str, for_ms: int = SHOWN_FOR_MS, *, urgent: bool = False) -> None:
        """Shows `text` for `for_ms`. `urgent`: something was refused."""
        self.label.setText(text)
        self.setAccessibleName(text)
        self._place()
        self.show()
        self.raise_()
        self._timer.start(for_ms)
        announce(self._around, text, urgent=urgent)

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if event.type() == QEvent.Type.Resize and self.isVisible():
            self._place()
        elif event.type() == QEvent.Type.Close:
            self._timer.stop()
        return False

    def _place(self) -> None:
        self.adjustSize()
        around = self._around.rect()
        self.move((around.width() - self.width()) // 2, around.height() - self.height() - 48)

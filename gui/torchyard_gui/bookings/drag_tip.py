"""The words beside what is dragged: its times, and the reason where it cannot be."""

from __future__ import annotations

from PySide6.QtCore import QPoint, Qt
from PySide6.QtWidgets import QLabel, QWidget

WIDEST = 320


class DragTip(QLabel):
    """Lies over the calendar, within it, and is transparent to the mouse."""

    def __init__(self, ground: QWidget):
        super().__init__(ground)
        self._ground = ground
        self.setProperty("popup", True)
        self.setTextFormat(Qt.TextFormat.PlainText)
        self.setWordWrap(True)
        self.setAttribute(Qt.WidgetAttribute.WA_TransparentForMouseEvents)
        self.setContentsMargins(8, 5, 8, 5)
        self.setAutoFillBackground(True)
        self.hide()

    def say(self, text: str, at: QPoint, *, is_bad: bool) -> None:
        self.setText(text)
        self.setProperty("ink", "fail" if is_bad else "")
        self.style().unpolish(self)
        self.style().polish(self)
        room = self._ground.rect()
        width = min(self.fontMetrics().boundingRect(0, 0, WIDEST, 400, 0, text).width() + 26, WIDEST + 26)
        self.setFixedWidth(width)
        self.setFixedHeight(self.heightForWidth(width))
        place = at + QPoint(14, 18)
        place.setX(max(0, min(place.x(), room.right() - width - 4)))
        if place.y() + self.height() > room.bottom():
            place.setY(at.y() - self.height() - 10)
        self.move(place)
        self.show()
        self.raise_()

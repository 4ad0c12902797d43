"""A line of text that ends with "…" where it is too long for its field, for as long as nobody edits it."""

from __future__ import annotations

from PySide6.QtCore import QEvent, QRect, Qt
from PySide6.QtGui import QHelpEvent, QPainter, QPaintEvent
from PySide6.QtWidgets import QLineEdit, QStyle, QStyleOptionFrame, QToolTip

INSET = 2
"""What QLineEdit leaves at both ends of its text."""


class ElidedLine(QLineEdit):
    """Its tool tip says the whole text then, above what the field is for."""

    taken_at_end = 0
    """Pixels of the field that a button has."""

    @property
    def shown_text(self) -> str:
        """What can be read of its text now."""
        text = self.text()
        room = self._room().width()
        if self.hasFocus() or self.fontMetrics().horizontalAdvance(text) <= room:
            return text
        return self.shortened(room)

    def shortened(self, room: int) -> str:
        """The text in so many pixels."""
        return self.fontMetrics().elidedText(self.text(), Qt.TextElideMode.ElideRight, room)

    def _room(self) -> QRect:
        option = QStyleOptionFrame()
        self.initStyleOption(option)
        rect = self.style().subElementRect(QStyle.SubElement.SE_LineEditContents, option, self)
        return rect.adjusted(INSET, 0, -INSET - self.taken_at_end, 0)

    def paintEvent(self, event: QPaintEvent) -> None:
        text = self.shown_text
        if text == self.text():
            super().paintEvent(event)
            return
        option = QStyleOptionFrame()
        self.initStyleOption(option)
        painter = QPainter(self)
        self.style().drawPrimitive(QStyle.PrimitiveElement.PE_PanelLineEdit, option, painter, self)
        painter.setPen(option.palette.text().color())
        painter.drawText(self._room(), int(Qt.AlignmentFlag.AlignVCenter | Qt.AlignmentFlag.AlignLeft), text)

    def event(self, event: QEvent) -> bool:
        if isinstance(event, QHelpEvent) and event.type() == QEvent.Type.ToolTip and self.shown_text != self.text():
            QToolTip.showText(event.globalPos(), f"{self.text()}\n{self.toolTip()}".strip(), self)
            return True
        return super().event(event)

"""Label whose text can be wrapped at any character, for fingerprints and paths without spaces."""

from __future__ import annotations

from PySide6.QtCore import QPointF, QSize
from PySide6.QtGui import QFont, QPainter, QPaintEvent, QTextLayout, QTextOption
from PySide6.QtWidgets import QSizePolicy, QWidget

from torchyard_gui.theme.theme import theme

LINE = 19


def wrapped(text: str, font: QFont, width: int) -> list[str]:
    """Wraps text at spaces where possible, and otherwise at any character."""
    options = QTextOption()
    options.setWrapMode(QTextOption.WrapMode.WrapAtWordBoundaryOrAnywhere)
    lines: list[str] = []
    for paragraph in text.split("\n"):
        layout = QTextLayout(paragraph, font)
        layout.setTextOption(options)
        layout.beginLayout()
        while (line := layout.createLine()).isValid():
            line.setLineWidth(max(40, width))
            lines.append(paragraph[line.textStart() : line.textStart() + line.textLength()].strip())
        layout.endLayout()
    return lines


class WrappedText(QWidget):
    """Label whose height fits its wrapped text."""

    def __init__(self, font: str = "small", parent: QWidget | None = None):
        super().__init__(parent)
        self._font = font
        self._text = ""
        policy = QSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred)
        policy.setHeightForWidth(True)
        self.setSizePolicy(policy)
        theme().changed.connect(self.update)

    def text(self) -> str:
        return self._text

    def setText(self, text: str) -> None:
        if text != self._text:
            self._text = text
            self.setAccessibleName(text)
            self.updateGeometry()
            self.update()

    def hasHeightForWidth(self) -> bool:
        return True

    def heightForWidth(self, width: int) -> int:
        return LINE * len(wrapped(self._text, theme().font(self._font), width)) if self._text else 0

    def sizeHint(self) -> QSize:
        return QSize(200, self.heightForWidth(max(200, self.width())))

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setFont(theme().font(self._font))
        painter.setPen(theme().pen("text"))
        ascent = painter.fontMetrics().ascent() + (LINE - painter.fontMetrics().height()) / 2
        for number, line in enumerate(wrapped(self._text, theme().font(self._font), self.width())):
            painter.drawText(QPointF(0, number * LINE + ascent), line)

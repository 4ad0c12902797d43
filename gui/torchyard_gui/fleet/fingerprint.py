"""Shows a host key's fingerprint as monospaced, unclipped text that can be copied without line breaks."""

from __future__ import annotations

import math

from PySide6.QtCore import QSize, Qt
from PySide6.QtGui import QResizeEvent, QTextLayout, QTextOption
from PySide6.QtWidgets import QFrame, QPlainTextEdit, QSizePolicy, QWidget

from torchyard_gui.theme.theme import theme

LEAST_WIDTH = 60


class Fingerprint(QPlainTextEdit):
    """Text field whose height fits its text, which may be wrapped between any two characters."""

    def __init__(self, name: str, parent: QWidget | None = None):
        super().__init__(parent)
        self.setAccessibleName(name)
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setStyleSheet("QPlainTextEdit { border: none; background: transparent; padding: 0; }")
        self.setFont(theme().font("mono"))
        self.document().setDocumentMargin(0)
        self.setWordWrapMode(QTextOption.WrapMode.WrapAnywhere)
        flags = Qt.TextInteractionFlag
        self.setTextInteractionFlags(flags.TextSelectableByMouse | flags.TextSelectableByKeyboard)
        self.setTabChangesFocus(True)
        for set_policy in (self.setVerticalScrollBarPolicy, self.setHorizontalScrollBarPolicy):
            set_policy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)

    def text(self) -> str:
        return self.toPlainText()

    def setText(self, text: str) -> None:
        if text != self.text():
            self.setPlainText(text)
            self._fit()

    def sizeHint(self) -> QSize:
        return QSize(200, fingerprint_height(self.text(), self.width()))

    def minimumSizeHint(self) -> QSize:
        return QSize(LEAST_WIDTH, self.sizeHint().height())

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        if event.oldSize().width() != event.size().width():
            self._fit()

    def _fit(self) -> None:
        self.setFixedHeight(fingerprint_height(self.text(), self.width()))


def fingerprint_height(text: str, width: int) -> int:
    """Returns the height in pixels of a fingerprint that is wrapped at `width` pixels."""
    layout = QTextLayout(text, theme().font("mono"))
    layout.setTextOption(_wrapping())
    layout.beginLayout()
    height = 0.0
    while text and (line := layout.createLine()).isValid():
        line.setLineWidth(max(LEAST_WIDTH, width))
        height += line.height()
    layout.endLayout()
    return math.ceil(height) + 2 if text else 0


def _wrapping() -> QTextOption:
    options = QTextOption()
    options.setWrapMode(QTextOption.WrapMode.WrapAnywhere)
    return options

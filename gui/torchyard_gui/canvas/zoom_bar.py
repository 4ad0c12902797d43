"""The zoom buttons in the lower left corner of the canvas."""

from __future__ import annotations

from PySide6.QtCore import QRectF, QSize, Qt, Signal
from PySide6.QtGui import QPainter, QPaintEvent
from PySide6.QtWidgets import QFrame, QToolButton, QWidget

from torchyard_gui.theme.icons import icon
from torchyard_gui.theme.theme import theme
from torchyard_gui.theme.tokens import METRICS as M
from torchyard_gui.widgets.layouts import hbox


class ZoomBar(QFrame):
    """A bar with the zoom buttons. User requests are emitted as signals."""

    out_asked = Signal()
    in_asked = Signal()
    reset_asked = Signal()
    fit_asked = Signal()

    def __init__(self, parent: QWidget):
        super().__init__(parent)
        self.setCursor(Qt.CursorShape.ArrowCursor)
        row = hbox(parent=self, margins=(2, 2, 2, 2), spacing=0)
        self._out = self._button("minus", self.tr("Zoom out"), "-")
        self._text = QToolButton(self)
        self._text.setFont(theme().font("small"))
        self._text.setFixedSize(52, 26)
        self._text.setToolTip(self.tr("Show at full size (0)"))
        self._in = self._button("plus", self.tr("Zoom in"), "+")
        self._fit = self._button("fit", self.tr("Fit everything"), "Home")
        for button, signal in (
            (self._out, self.out_asked),
            (self._text, self.reset_asked),
            (self._in, self.in_asked),
            (self._fit, self.fit_asked),
        ):
            button.setAutoRaise(True)
            button.setFocusPolicy(Qt.FocusPolicy.NoFocus)
            button.clicked.connect(signal)
            row.addWidget(button)
        self.show_zoom(1.0)
        self.adjustSize()

    def show_zoom(self, zoom: float) -> None:
        text = self.tr("{percent} %").format(percent=round(zoom * 100))
        self._text.setText(text)
        self._text.setAccessibleName(self.tr("Zoom {percent} %").format(percent=round(zoom * 100)))

    def _button(self, name: str, text: str, key: str) -> QToolButton:
        button = QToolButton(self)
        button.setIcon(icon(name))
        button.setIconSize(QSize(16, 16))
        button.setFixedSize(30, 26)
        button.setToolTip(f"{text} ({key})")
        button.setAccessibleName(text)
        return button

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(theme().pen("hair"))
        painter.setBrush(theme().brush("s1"))
        painter.drawRoundedRect(QRectF(self.rect()).adjusted(0.5, 0.5, -0.5, -0.5), M.radius, M.radius)
        painter.end()

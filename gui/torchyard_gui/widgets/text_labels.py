"""Labels (plain, elided, and for section headings) and dividers."""

from __future__ import annotations

from PySide6.QtCore import QEvent, QSize, Qt
from PySide6.QtGui import QPainter, QPaintEvent, QResizeEvent
from PySide6.QtWidgets import QFrame, QLabel, QStyleOption, QWidget


def label(text: str = "", *, role: str = "", ink: str = "", wrap: bool = False) -> QLabel:
    """Returns a label with plain text.

    Args:
        role: Role of the font: "title", "strong", "small" or "tiny".
        ink: Colour of the text: "2", "3", "fail", "wait", "run" or "accent".
    """
    made = QLabel(text, wordWrap=wrap)
    _style(made, role, ink)
    return made


def _style(made: QLabel, role: str, ink: str) -> None:
    made.setTextFormat(Qt.TextFormat.PlainText)
    if role:
        made.setProperty("role", role)
    if ink:
        made.setProperty("ink", ink)


def set_ink(widget: QWidget, ink: str) -> None:
    set_style_property(widget, "ink", ink)


def set_style_property(widget: QWidget, name: str, value: str | bool) -> None:
    """Changes a property to which the style sheet refers, and applies the style sheet to the widget again."""
    if (widget.property(name) or type(value)()) != value:
        widget.setProperty(name, value)
        widget.style().unpolish(widget)
        widget.style().polish(widget)


SEPARATOR = " · "


class SectionLabel(QLabel):
    """The heading of a section, in capital letters if the writing system has them."""

    def __init__(self, text: str = "", parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setProperty("role", "section")
        self.setText(text)

    def setText(self, text: str) -> None:
        super().setText(text.upper())
        self.setAccessibleName(text)


class ElidedLabel(QLabel):
    """A label with a single line. If the text does not fit, it is shortened, and the tool tip contains the full
    text.
    """

    def __init__(self, text: str = "", *, role: str = "", ink: str = "", in_middle: bool = False) -> None:
        super().__init__(text)
        _style(self, role, ink)
        self._mode = Qt.TextElideMode.ElideMiddle if in_middle else Qt.TextElideMode.ElideRight
        self._own_tip = False

    def minimumSizeHint(self) -> QSize:
        return QSize(min(24, super().sizeHint().width()), super().sizeHint().height())

    def setText(self, text: str) -> None:
        super().setText(text)
        self._update_tip()

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._update_tip()

    def changeEvent(self, event: QEvent) -> None:
        super().changeEvent(event)
        if event.type() == QEvent.Type.FontChange:
            self._update_tip()

    def shown_text(self) -> str:
        return self.fontMetrics().elidedText(self.text(), self._mode, self.contentsRect().width())

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        option = QStyleOption()
        option.initFrom(self)
        side, ink = int(self.alignment().value), self.foregroundRole()
        self.style().drawItemText(
            painter, self.contentsRect(), side, option.palette, self.isEnabled(), self.shown_text(), ink
        )

    def _update_tip(self) -> None:
        short = self.shown_text() != self.text()
        if short:
            self.setToolTip(self.text())
            self._own_tip = True
        elif self._own_tip:
            self.setToolTip("")
            self._own_tip = False


class PartsLabel(ElidedLabel):
    """A label whose parts are separated by middle dots. If not all parts fit, the last parts are left out."""

    def shown_text(self) -> str:
        metrics, width = self.fontMetrics(), self.contentsRect().width()
        parts = self.text().split(SEPARATOR)
        while len(parts) > 1 and metrics.horizontalAdvance(SEPARATOR.join(parts)) > width:
            parts.pop()
        return metrics.elidedText(SEPARATOR.join(parts), Qt.TextElideMode.ElideRight, width)


class Divider(QFrame):
    """A thin horizontal line."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setProperty("divider", True)

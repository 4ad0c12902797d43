"""Widgets that show names with states, roles and loads."""

from __future__ import annotations

from PySide6.QtCore import QRectF, QSize, Qt
from PySide6.QtGui import QBrush, QPainter, QPaintEvent
from PySide6.QtWidgets import QSizePolicy, QWidget

from torchyard_gui.theme.icons import paint_role_badge, paint_state
from torchyard_gui.theme.theme import theme
from torchyard_gui.widgets.layouts import FLUSH, hbox, vbox
from torchyard_gui.widgets.text_labels import ElidedLabel, PartsLabel


class StateMark(QWidget):
    """The mark of a state. It should be beside a label with the state's name."""

    def __init__(self, state: str = "unknown", size: int = 16, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._state = state
        self.setFixedSize(size, size)
        theme().changed.connect(self.update)

    @property
    def state(self) -> str:
        return self._state

    def set_state(self, state: str) -> None:
        if state != self._state:
            self._state = state
            self.update()

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        paint_state(painter, QRectF(self.rect()), self._state)


class StateTitle(QWidget):
    """A name, with a mark and a state on the line below. On the same line, a long name would leave no space for the
    state.
    """

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.name = ElidedLabel(role="title")
        self.mark = StateMark("idle", 14)
        self.state = PartsLabel(role="small", ink="2")
        line = hbox(self.mark, (self.state, 1), margins=FLUSH, spacing=6)
        vbox(None, self.name, line, None, parent=self, margins=FLUSH, spacing=1)

    def show_state(self, mark: str, text: str) -> None:
        """Shows a state with its mark. An empty text hides both.

        `text` begins with the state. If the text is too long, its last parts are shown only in the tool tip.
        """
        self.mark.set_state(mark)
        self.state.setText(text)
        for widget in (self.mark, self.state):
            widget.setVisible(bool(text))


class RoleBadge(QWidget):
    """The badge of a role. It should be beside a label with the role's name."""

    def __init__(self, role: str, size: int = 20, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._role = role
        self.setFixedSize(size, size)
        theme().changed.connect(self.update)

    def set_role(self, role: str) -> None:
        if role != self._role:
            self._role = role
            self.update()

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        paint_role_badge(painter, QRectF(self.rect()), self._role)


class MeterBar(QWidget):
    """A bar that is filled up to the fraction `value`, from 0 to 1, in the colour of a token. The value None means
    unknown.
    """

    def __init__(self, value: float | None = None, token: str = "meter", parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._value = value
        self._token = token
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        theme().changed.connect(self.update)

    @property
    def value(self) -> float | None:
        return self._value

    def set_value(self, value: float | None, token: str | None = None) -> None:
        if (value, token or self._token) != (self._value, self._token):
            self._value = value
            self._token = token or self._token
            self.update()

    def sizeHint(self) -> QSize:
        return QSize(40, 4)

    def minimumSizeHint(self) -> QSize:
        return QSize(16, 4)

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(Qt.PenStyle.NoPen)
        whole = QRectF(0, (self.height() - 4) / 2, self.width(), 4)
        painter.setBrush(theme().brush("track"))
        painter.drawRoundedRect(whole, 2, 2)
        if self._value is None:
            painter.setBrush(QBrush(theme().color("unknown"), Qt.BrushStyle.BDiagPattern))
            painter.drawRect(whole)
        elif self._value > 0:
            whole.setWidth(max(4.0, whole.width() * min(1.0, self._value)))
            painter.setBrush(theme().brush(self._token))
            painter.drawRoundedRect(whole, 2, 2)

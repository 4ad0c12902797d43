"""A state's or a role's mark as a widget, for rows that are widgets."""

from __future__ import annotations

from PySide6.QtCore import QRectF
from PySide6.QtGui import QPainter, QPaintEvent
from PySide6.QtWidgets import QWidget

from torchyard_gui.theme.icons import paint_role_badge, paint_state
from torchyard_gui.theme.theme import theme


class StateMark(QWidget):
    """The shape of a state; say the state in words beside it."""

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


class RoleBadge(QWidget):
    """The badge of a role: shape, colour and letter; say the role in words beside it."""

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

"""A small panel over the window that asks for one thing."""

from __future__ import annotations

from PySide6.QtCore import QPoint, Qt
from PySide6.QtGui import QKeyEvent
from PySide6.QtWidgets import QFrame, QLineEdit, QSpinBox, QWidget


class Popup(QFrame):
    """Enter agrees, Esc and a click beside it do not."""

    def __init__(self, parent: QWidget) -> None:
        super().__init__(parent, Qt.WindowType.Popup)
        self.setProperty("popup", True)

    def agree(self) -> None:
        """Enter was pressed: what is typed is meant."""
        raise NotImplementedError

    def open_at(self, place: QPoint, field: QLineEdit | QSpinBox) -> None:
        """Opens at a place of the screen, with the keyboard in a field, to be typed over."""
        self.move(place)
        self.show()
        field.setFocus(Qt.FocusReason.PopupFocusReason)
        field.selectAll()

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter):
            self.agree()
            return
        super().keyPressEvent(event)

"""Asks how many: a small panel beside a row of the palette."""

from __future__ import annotations

from PySide6.QtCore import QPoint, Qt, Signal
from PySide6.QtGui import QKeyEvent
from PySide6.QtWidgets import QFrame, QHBoxLayout, QPushButton, QSpinBox, QWidget

from torchyard_core.topology.model import MAX_REPLICAS
from torchyard_gui.widgets.labels import label

USUAL = 4


class CountPopup(QFrame):
    """Enter agrees, Esc and a click beside it do not."""

    agreed = Signal(str, int)

    def __init__(self, parent: QWidget) -> None:
        super().__init__(parent, Qt.WindowType.Popup)
        self.setProperty("popup", True)
        self._key = ""
        self.number = QSpinBox()
        self.number.setRange(1, MAX_REPLICAS)
        self.number.setAccessibleName(self.tr("How many"))
        self.number.setMinimumWidth(72)
        self._noun = label()
        self.add = QPushButton(self.tr("Add"))
        self.add.setProperty("primary", True)
        layout = QHBoxLayout(self)
        layout.setContentsMargins(10, 8, 10, 8)
        layout.setSpacing(8)
        layout.addWidget(self.number)
        layout.addWidget(self._noun)
        layout.addWidget(self.add)
        self.add.clicked.connect(self._agree)

    def ask(self, key: str, noun: str, place: QPoint) -> None:
        """Opens at a place of the screen."""
        self._key = key
        self._noun.setText(noun)
        self.number.setValue(USUAL)
        self.move(place)
        self.show()
        self.number.setFocus(Qt.FocusReason.PopupFocusReason)
        self.number.selectAll()

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter):
            self._agree()
            return
        super().keyPressEvent(event)

    def _agree(self) -> None:
        self.number.interpretText()
        self.hide()
        self.agreed.emit(self._key, self.number.value())

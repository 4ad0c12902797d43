"""Asks how many: a small panel beside a row of the palette."""

from __future__ import annotations

from PySide6.QtCore import QPoint, Signal
from PySide6.QtWidgets import QHBoxLayout, QPushButton, QWidget

from torchyard_core.topology.model import MAX_REPLICAS
from torchyard_gui.widgets.number_field import NumberField
from torchyard_gui.widgets.popup import Popup
from torchyard_gui.widgets.text_labels import label

USUAL = 4


class CountPopup(Popup):
    """`agreed` carries the key that was asked for, and the number."""

    agreed = Signal(str, int)

    def __init__(self, parent: QWidget) -> None:
        super().__init__(parent)
        self._key = ""
        self.number = NumberField()
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
        self.add.clicked.connect(self.agree)

    def ask(self, key: str, noun: str, place: QPoint) -> None:
        """Opens at a place of the screen."""
        self._key = key
        self._noun.setText(noun)
        self.number.setValue(USUAL)
        self.open_at(place, self.number)

    def agree(self) -> None:
        self.number.interpretText()
        self.hide()
        self.agreed.emit(self._key, self.number.value())

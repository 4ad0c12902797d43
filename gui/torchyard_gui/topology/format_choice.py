"""Asks what a document is of which nobody can tell by what is in it."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QSize, Qt, Signal
from PySide6.QtWidgets import QDialog, QListWidget, QListWidgetItem, QVBoxLayout, QWidget

from torchyard_gui.theme.theme import theme
from torchyard_gui.widgets.dialog_buttons import DialogButtons
from torchyard_gui.widgets.text_labels import label

WIDTH = 420


class FormatChoice(QDialog):
    """One of some formats, or none. Open it with `open()`."""

    chosen = Signal(str)
    """A format's name."""

    def __init__(self, document: str, formats: Sequence[tuple[str, str]], parent: QWidget) -> None:
        """`formats`: (name, title) of each."""
        super().__init__(parent)
        self.setObjectName("format")
        self.setWindowTitle(self.tr("What is {file}?").format(file=document))
        self.setMinimumWidth(WIDTH)
        self.list = QListWidget()
        self.list.setAccessibleName(self.tr("Formats"))
        for name, title in formats:
            item = QListWidgetItem(title, self.list)
            item.setData(Qt.ItemDataRole.UserRole, name)
            item.setSizeHint(QSize(0, theme().metrics.row))
        self.list.setCurrentRow(0)
        self.list.setFixedHeight(len(formats) * theme().metrics.row + 8)
        self.list.itemActivated.connect(lambda _: self.accept())
        buttons = DialogButtons(self, self.tr("Import"))
        self.ok = buttons.agree
        self.ok.setDefault(True)
        sentence = self.tr("What is in it tells no format. Say which one is meant: you are told what it lacks.")
        layout = QVBoxLayout(self)
        layout.setContentsMargins(20, 18, 20, 16)
        layout.setSpacing(10)
        layout.addWidget(label(self.windowTitle(), role="title", wrap=True))
        layout.addWidget(label(sentence, wrap=True))
        layout.addWidget(self.list)
        layout.addSpacing(6)
        layout.addWidget(buttons)
        self.accepted.connect(lambda: self.chosen.emit(self.list.currentItem().data(Qt.ItemDataRole.UserRole)))

"""A line to search in: the lens before it, a cross to empty it, Esc too."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtGui import QKeyEvent
from PySide6.QtWidgets import QLineEdit, QWidget

from torchyard_gui.theme.icons import icon


class SearchField(QLineEdit):
    """Esc empties it first; an empty one lets Esc through to who is around it."""

    def __init__(self, placeholder: str, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setPlaceholderText(placeholder)
        self.setAccessibleName(placeholder.rstrip(" ….") or self.tr("Search"))
        self.setClearButtonEnabled(True)
        self.addAction(icon("search"), QLineEdit.ActionPosition.LeadingPosition)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() == Qt.Key.Key_Escape and self.text():
            self.clear()
            return
        super().keyPressEvent(event)

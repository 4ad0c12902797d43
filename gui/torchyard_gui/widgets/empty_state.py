"""What a page shows while there is nothing in it: what it is for and what to do first."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtGui import QAction
from PySide6.QtWidgets import QHBoxLayout, QLabel, QPushButton, QVBoxLayout, QWidget

from torchyard_gui.theme.icons import pixmap
from torchyard_gui.theme.theme import theme
from torchyard_gui.widgets.text_labels import label

WIDTH = 400
"""Of the sentence: longer lines are hard to read."""


class EmptyState(QWidget):
    """A title, a sentence, and buttons for what to do first: the first one is the primary."""

    def __init__(
        self, title: str, sentence: str, *actions: QAction, icon_name: str = "", parent: QWidget | None = None
    ) -> None:
        super().__init__(parent)
        self._icon_name = icon_name
        self._picture = QLabel(self)
        self._picture.setAlignment(Qt.AlignmentFlag.AlignCenter)
        self._picture.setVisible(bool(icon_name))
        self.title = label(title, role="title")
        self.title.setAlignment(Qt.AlignmentFlag.AlignCenter)
        self.sentence = label(sentence, ink="2", wrap=True)
        self.sentence.setAlignment(Qt.AlignmentFlag.AlignHCenter | Qt.AlignmentFlag.AlignTop)
        self.sentence.setMaximumWidth(WIDTH)
        self.buttons = [_button(action, first=number == 0) for number, action in enumerate(actions)]

        layout = QVBoxLayout(self)
        layout.setSpacing(6)
        layout.addStretch(2)
        layout.addWidget(self._picture)
        layout.addSpacing(6)
        layout.addWidget(self.title)
        across = QHBoxLayout()
        across.addStretch(1)
        across.addWidget(self.sentence, 1000)
        across.addStretch(1)
        layout.addLayout(across)
        row = QHBoxLayout()
        row.setSpacing(8)
        row.addStretch()
        for button in self.buttons:
            row.addWidget(button)
        row.addStretch()
        layout.addSpacing(8)
        layout.addLayout(row)
        layout.addStretch(3)
        theme().changed.connect(self._draw)
        self._draw()

    def set_texts(self, title: str, sentence: str) -> None:
        """Say something else."""
        self.title.setText(title)
        self.sentence.setText(sentence)

    def _draw(self) -> None:
        if self._icon_name:
            self._picture.setPixmap(pixmap(self._icon_name, 40, "line", self.devicePixelRatioF()))


def _button(action: QAction, *, first: bool) -> QPushButton:
    button = QPushButton(action.text().replace("&", ""))
    button.setProperty("primary", first)
    button.setToolTip(action.toolTip())
    button.setEnabled(action.isEnabled())
    button.clicked.connect(action.trigger)
    return button

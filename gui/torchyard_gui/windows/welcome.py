"""A button on the empty canvas that opens the example, for new users."""

from __future__ import annotations

from pathlib import Path

from PySide6.QtCore import QEvent, QObject, Qt
from PySide6.QtGui import QAction
from PySide6.QtWidgets import QPushButton, QWidget

import torchyard_core
from torchyard_core.topology.document.topology_document import TopologyDocument

BELOW_MIDDLE = 52
"""Distance in pixels from the middle of the canvas to the top of the button, which is below the text of the canvas."""


class OpenExampleButton(QPushButton):
    """Button below the text of an empty canvas. It is visible while the document is new and unchanged, if the
    installation contains an example.
    """

    def __init__(self, canvas: QWidget, document: TopologyDocument, action: QAction) -> None:
        super().__init__(action.text(), canvas)
        self._canvas = canvas
        self._document = document
        self._action = action
        self.setToolTip(action.toolTip())
        self.clicked.connect(action.trigger)
        document.changed.connect(self._follow)
        document.path_changed.connect(self._follow)
        canvas.installEventFilter(self)
        self._follow()

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if event.type() == QEvent.Type.Resize:
            self._place()
        return False

    def _follow(self) -> None:
        new = self._document.path is None and not self._document.is_modified
        if self.hasFocus() and not new:
            # When the button is hidden, Qt would focus the next widget, which is a button of the navigation rail.
            self._canvas.setFocus(Qt.FocusReason.OtherFocusReason)
        self.setVisible(new and self._action.isVisible())
        self._place()

    def _place(self) -> None:
        self.adjustSize()
        around = self._canvas.rect()
        self.move((around.width() - self.width()) // 2, around.height() // 2 + BELOW_MIDDLE)


EXAMPLE = Path("examples", "digits", "this-computer.yaml")


def example_file() -> Path | None:
    """Returns the path of the example, or None if the installation does not include it."""
    path = Path(torchyard_core.__file__).resolve().parents[2] / EXAMPLE
    return path if path.is_file() else None

"""A column of widgets that scrolls where it is too high for its room."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QFrame, QScrollArea, QWidget


def scrolled(inside: QWidget, name: str = "") -> QScrollArea:
    """An area without a frame that scrolls up and down alone. With a name it takes the keyboard, to be scrolled by."""
    area = QScrollArea()
    area.setWidgetResizable(True)
    area.setFrameShape(QFrame.Shape.NoFrame)
    area.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
    if name:
        area.setAccessibleName(name)
    else:
        area.setFocusPolicy(Qt.FocusPolicy.NoFocus)
    area.setWidget(inside)
    return area

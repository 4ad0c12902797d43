"""Containers: cards, scroll areas and tables."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QAbstractItemView, QFrame, QScrollArea, QTableView, QWidget

from torchyard_gui.theme.tokens import METRICS
from torchyard_gui.widgets.layouts import vbox
from torchyard_gui.widgets.text_labels import set_style_property


class Card(QFrame):
    """A frame with a border. `body` is the vertical layout of its content."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setProperty("card", True)
        self.body = vbox(parent=self, margins=(12, 10, 12, 10), spacing=6)

    def set_selected(self, selected: bool) -> None:
        """Sets whether the selection outline is drawn."""
        set_style_property(self, "selected", selected)


def scroll_area(inside: QWidget, name: str = "") -> QScrollArea:
    """Returns a frameless area that scrolls vertically.

    If `name` is given, the area accepts the focus, so that it can be scrolled by keyboard.
    """
    area = QScrollArea(widgetResizable=True)
    area.setFrameShape(QFrame.Shape.NoFrame)
    area.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
    if name:
        area.setAccessibleName(name)
    else:
        area.setFocusPolicy(Qt.FocusPolicy.NoFocus)
    inside.setObjectName("contents")  # The style sheet makes this widget transparent.
    area.setWidget(inside)
    return area


def prepare_rows(table: QTableView, name: str, *, many: bool = False) -> None:
    """Makes a table read-only, without a grid, and with selection of whole rows. Tab leaves the table.

    Args:
        many: Whether several rows can be selected.
    """
    table.setAccessibleName(name)
    table.setEditTriggers(QAbstractItemView.EditTrigger.NoEditTriggers)
    mode = QAbstractItemView.SelectionMode
    table.setSelectionMode(mode.ExtendedSelection if many else mode.SingleSelection)
    table.setSelectionBehavior(QAbstractItemView.SelectionBehavior.SelectRows)
    table.setTabKeyNavigation(False)
    table.setShowGrid(False)
    table.verticalHeader().hide()
    table.verticalHeader().setDefaultSectionSize(METRICS.row)

"""Building of box layouts, and removal of widgets from layouts and of actions from menus."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QBoxLayout, QHBoxLayout, QLayout, QMenu, QSplitter, QVBoxLayout, QWidget

Part = QWidget | QLayout | int | None
"""What a box holds: a widget, a layout, an empty space of so many pixels, or None for space that stretches."""
Margins = tuple[int, int, int, int]
"""Left, top, right, bottom."""
FLUSH: Margins = (0, 0, 0, 0)
Box = TypeVar("Box", bound=QBoxLayout)


def vbox(
    *parts: Part | tuple[Part, int], parent: QWidget | None = None, margins: Margins | None = None, spacing: int = -1
) -> QVBoxLayout:
    """Lays out parts from top to bottom, each alone or with its stretch factor. The style sets what is not given."""
    return _filled(QVBoxLayout() if parent is None else QVBoxLayout(parent), parts, margins, spacing)


def hbox(
    *parts: Part | tuple[Part, int], parent: QWidget | None = None, margins: Margins | None = None, spacing: int = -1
) -> QHBoxLayout:
    """Lays out parts from left to right; see `vbox`."""
    return _filled(QHBoxLayout() if parent is None else QHBoxLayout(parent), parts, margins, spacing)


def _filled(box: Box, parts: Iterable[Part | tuple[Part, int]], margins: Margins | None, spacing: int) -> Box:
    if margins is not None:
        box.setContentsMargins(*margins)
    box.setSpacing(spacing)
    fill(box, *parts)
    return box


def fill(box: QBoxLayout, *parts: Part | tuple[Part, int]) -> None:
    """Adds parts at the end of a box; see `vbox`."""
    for item in parts:
        part, stretch = item if isinstance(item, tuple) else (item, 0)
        if isinstance(part, QWidget):
            box.addWidget(part, stretch)
        elif isinstance(part, QLayout):
            box.addLayout(part, stretch)
        elif part is None:
            box.addStretch(stretch)
        else:
            box.addSpacing(part)


def splitter(direction: Qt.Orientation, *parts: QWidget, grows: int, sizes: list[int] | None = None) -> QSplitter:
    """Returns a splitter whose parts cannot be closed; the part of number `grows` takes additional space."""
    made = QSplitter(direction)
    for part in parts:
        made.addWidget(part)
    made.setChildrenCollapsible(False)
    made.setStretchFactor(grows, 1)
    if sizes is not None:
        made.setSizes(sizes)
    return made


def remove_widgets(layout: QLayout, widgets: Iterable[QWidget]) -> None:
    """Removes widgets; hides them at once, deletes them in the next turn of the event loop."""
    for widget in widgets:
        layout.removeWidget(widget)
        widget.hide()
        widget.deleteLater()


def clear_layout(layout: QLayout) -> None:
    items = [layout.itemAt(number) for number in range(layout.count())]
    remove_widgets(layout, [widget for item in items if item is not None and (widget := item.widget()) is not None])


def clear_menu(menu: QMenu) -> None:
    """Removes all actions from a menu; deletes the separators and submenus it created.

    Unlike `QMenu.clear()`, which in PySide also deletes actions of `QUndoStack.createUndoAction` and keeps every
    submenu.
    """
    for action in menu.actions():
        menu.removeAction(action)
        if action.parent() is menu:
            action.deleteLater()
    for within in menu.findChildren(QMenu, options=Qt.FindChildOption.FindDirectChildrenOnly):
        within.deleteLater()

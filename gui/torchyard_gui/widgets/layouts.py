"""Functions that build box layouts, remove widgets from layouts, and remove actions from menus."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from PySide6.QtCore import QCoreApplication, QEvent, Qt
from PySide6.QtWidgets import QBoxLayout, QHBoxLayout, QLayout, QMenu, QSplitter, QVBoxLayout, QWidget

Part = QWidget | QLayout | int | None
"""A part of a box: a widget, a layout, a space given in pixels, or None for a space that stretches."""
Margins = tuple[int, int, int, int]
"""The left, top, right and bottom margins."""
FLUSH: Margins = (0, 0, 0, 0)
Box = TypeVar("Box", bound=QBoxLayout)


def settle_layouts() -> None:
    """Lays out all changed widgets immediately. Qt itself would do so in several passes of the event loop.

    Until the last pass, new rows of a scroll area would be squeezed into the old height of the area.
    """
    QCoreApplication.sendPostedEvents(None, QEvent.Type.LayoutRequest.value)


def vbox(
    *parts: Part | tuple[Part, int], parent: QWidget | None = None, margins: Margins | None = None, spacing: int = -1
) -> QVBoxLayout:
    """Returns a layout of parts from top to bottom. A part is given alone or with its stretch factor.

    By default, the margins and the spacing are those of the style.
    """
    return _filled(QVBoxLayout() if parent is None else QVBoxLayout(parent), parts, margins, spacing)


def hbox(
    *parts: Part | tuple[Part, int], parent: QWidget | None = None, margins: Margins | None = None, spacing: int = -1
) -> QHBoxLayout:
    """Returns a layout of parts from left to right. The arguments are those of `vbox`."""
    return _filled(QHBoxLayout() if parent is None else QHBoxLayout(parent), parts, margins, spacing)


def _filled(box: Box, parts: Iterable[Part | tuple[Part, int]], margins: Margins | None, spacing: int) -> Box:
    if margins is not None:
        box.setContentsMargins(*margins)
    box.setSpacing(spacing)
    fill(box, *parts)
    return box


def fill(box: QBoxLayout, *parts: Part | tuple[Part, int]) -> None:
    """Adds parts at the end of a box layout. The parts are given as for `vbox`."""
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
    """Returns a splitter whose parts cannot be collapsed. The part with the index `grows` gets all additional space."""
    made = QSplitter(direction)
    for part in parts:
        made.addWidget(part)
    made.setChildrenCollapsible(False)
    made.setStretchFactor(grows, 1)
    if sizes is not None:
        made.setSizes(sizes)
    return made


def remove_widgets(layout: QLayout, widgets: Iterable[QWidget]) -> None:
    """Removes widgets from a layout. They are hidden immediately and deleted by the event loop."""
    for widget in widgets:
        layout.removeWidget(widget)
        widget.hide()
        widget.deleteLater()


def clear_layout(layout: QLayout) -> None:
    items = [layout.itemAt(number) for number in range(layout.count())]
    remove_widgets(layout, [widget for item in items if item is not None and (widget := item.widget()) is not None])


def clear_menu(menu: QMenu) -> None:
    """Removes all actions from a menu. Deletes the submenus of the menu, and the actions whose parent is the menu.

    In PySide, `QMenu.clear()` would also delete actions of `QUndoStack.createUndoAction` and would keep every submenu.
    """
    for action in menu.actions():
        menu.removeAction(action)
        if action.parent() is menu:
            action.deleteLater()
    for within in menu.findChildren(QMenu, options=Qt.FindChildOption.FindDirectChildrenOnly):
        within.deleteLater()

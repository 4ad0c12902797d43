"""Removal of widgets from layouts and of actions from menus."""

from __future__ import annotations

from collections.abc import Iterable

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QLayout, QMenu, QWidget


def remove_widgets(layout: QLayout, widgets: Iterable[QWidget]) -> None:
    """Removes widgets; hides them at once, deletes them in the next turn of the event loop."""
    for widget in widgets:
        layout.removeWidget(widget)
        widget.hide()
        widget.deleteLater()


def clear_layout(layout: QLayout) -> None:
    """Removes all widgets of a layout."""
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

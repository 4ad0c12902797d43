"""Takes widgets out of a layout for good."""

from __future__ import annotations

from collections.abc import Iterable

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QLayout, QMenu, QWidget


def drop(layout: QLayout, widgets: Iterable[QWidget]) -> None:
    """Takes these out. They are deleted when the loop next turns, and hidden at once: nobody sees them till then."""
    for widget in widgets:
        layout.removeWidget(widget)
        widget.hide()
        widget.deleteLater()


def drop_all(layout: QLayout) -> None:
    """Takes every widget out that is in a layout now."""
    items = [layout.itemAt(number) for number in range(layout.count())]
    drop(layout, [widget for item in items if item is not None and (widget := item.widget()) is not None])


def empty_menu(menu: QMenu) -> None:
    """Take every action out of a menu, and delete the separators and submenus that it has made itself.

    Unlike `QMenu.clear()` it deletes no action of another owner: in PySide, `clear()` also deletes what
    `QUndoStack.createUndoAction` has made, and keeps every submenu.
    """
    for action in menu.actions():
        menu.removeAction(action)
        if action.parent() is menu:
            action.deleteLater()
    for within in menu.findChildren(QMenu, options=Qt.FindChildOption.FindDirectChildrenOnly):
        within.deleteLater()

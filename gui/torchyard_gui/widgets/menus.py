"""Menus that are filled anew."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QMenu


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

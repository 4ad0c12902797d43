"""The menus File, Edit, View, Run and Help. When they open, they are filled with the actions of the window and of the
current page.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property

from PySide6.QtCore import QCoreApplication, QPoint
from PySide6.QtGui import QAction
from PySide6.QtWidgets import QMenu, QWidget

from torchyard_gui.widgets.layouts import clear_menu
from torchyard_gui.widgets.page_actions import MENU, SUBMENU

NAMES = ("file", "edit", "view", "run", "help")
TITLES = {
    "file": QCoreApplication.translate("WindowMenu", "&File"),
    "edit": QCoreApplication.translate("WindowMenu", "&Edit"),
    "view": QCoreApplication.translate("WindowMenu", "&View"),
    "run": QCoreApplication.translate("WindowMenu", "&Run"),
    "help": QCoreApplication.translate("WindowMenu", "&Help"),
}

Actions = Callable[[], Iterable[QAction]]


class WindowMenu(QMenu):
    """Popup with five submenus.

    The popup is not attached to the window, because its actions would then keep the shortcuts of hidden pages active.
    """

    def __init__(self, page_actions: Actions, window_actions: Actions, parent: QWidget) -> None:
        super().__init__(parent)
        self._page_actions = page_actions
        self._window_actions = window_actions

    @cached_property
    def menus(self) -> dict[str, QMenu]:
        """The five submenus by name. They are created on first use."""
        return {name: self.addMenu(TITLES[name]) for name in NAMES}

    def popup_at(self, place: QPoint) -> None:
        """Opens the menu to the right of a point. Most of the menu is above the point."""
        self.fill()
        self.popup(QPoint(place.x(), place.y() - self.sizeHint().height() + 44))

    def fill(self) -> None:
        for menu in self.menus.values():
            clear_menu(menu)
        for actions in (self._page_actions(), self._window_actions()):
            for name, menu in self.menus.items():
                mine = [action for action in actions if menu_of(action) == name]
                if mine and not menu.isEmpty():
                    menu.addSeparator()
                _put(menu, mine)
        for menu in self.menus.values():
            menu.menuAction().setVisible(not menu.isEmpty())


def _put(menu: QMenu, actions: Iterable[QAction]) -> None:
    """Adds actions in order. A submenu is added at the position of its first action."""
    within: dict[str, QMenu] = {}
    for action in actions:
        title = action.property(SUBMENU)
        if not title:
            menu.addAction(action)
            continue
        if title not in within:
            within[title] = menu.addMenu(title)
        within[title].addAction(action)


def menu_of(action: QAction) -> str:
    """Returns the name of the menu to which an action belongs, by default Run."""
    name = action.property(MENU)
    return name if name in NAMES else "run"

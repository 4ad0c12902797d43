"""Actions of pages, with text, icon, shortcut, menu and tool tip."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import QObject, Qt
from PySide6.QtGui import QAction, QKeySequence

from torchyard_gui.theme.icons import icon

MENU = "menu"
"""The property of an action that names its menu: "file", "edit", "view", "run" or "help"."""
SUBMENU = "submenu"
"""The property of an action with the title of the submenu that contains the action, if any."""
Keys = str | QKeySequence.StandardKey | None


def tip_with_shortcut(action: QAction, tip: str) -> str:
    """Returns a tool tip that ends with the shortcut of the action, if there is one."""
    shortcut = action.shortcut().toString(QKeySequence.SequenceFormat.NativeText)
    return f"{tip} ({shortcut})" if shortcut else tip


def action(
    owner: QObject,
    menu: str,
    text: str,
    do: Callable[[], object],
    keys: Keys = None,
    icon_name: str = "",
    tip: str = "",
) -> QAction:
    """Creates an action that belongs to `owner` and appears in a menu."""
    made = QAction(text, owner)
    describe(made, menu, keys, icon_name, tip)
    made.triggered.connect(lambda: do())
    return made


def describe(action: QAction, menu: str, keys: Keys = None, icon_name: str = "", tip: str = "") -> None:
    """Sets menu, shortcut, icon and tool tip of an action. The default tool tip is the action's text."""
    action.setProperty(MENU, menu)
    if icon_name:
        action.setIcon(icon(icon_name))
    if isinstance(keys, str) and "Enter" in keys:
        # In Qt, the name Enter refers only to the key of the number pad. Tool tips show the first shortcut of an
        # action, and most keyboards label the main key Enter, not Return.
        action.setShortcuts([QKeySequence(keys), QKeySequence(keys.replace("Enter", "Return"))])
    elif keys:
        action.setShortcut(QKeySequence(keys))
    action.setToolTip(tip_with_shortcut(action, tip or action.text().replace("&", "")))


class PageActions(QObject):
    """Creates the actions of a page. The page connects and enables them."""

    def __init__(self, parent: QObject):
        super().__init__(parent)
        self._all: list[QAction] = []

    def all(self) -> list[QAction]:
        """Returns the actions in the order of their creation, which is also their order in the menus."""
        return list(self._all)

    def connect_to(self, calls: dict[QAction, Callable[[], object]]) -> None:
        for action, call in calls.items():
            action.triggered.connect(lambda checked=False, call=call: call())

    def _make(self, menu: str, text: str, icon_name: str, shortcut: str, tip: str, short: str = "") -> QAction:
        """Creates an action. `short` is the text on its button, by default `text`."""
        action = QAction(text, self)
        describe(action, menu, shortcut, icon_name, tip)
        action.setIconText(short or text)
        if shortcut:
            # Shortcuts work only on their page, because keys such as Delete and Escape have other meanings elsewhere.
            action.setShortcutContext(Qt.ShortcutContext.WidgetWithChildrenShortcut)
        self._all.append(action)
        return action

"""Factory of QActions with text, icon, shortcut, menu and tool tip."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import QObject
from PySide6.QtGui import QAction, QKeySequence

from torchyard_gui.theme.icons import icon
from torchyard_gui.widgets.page_actions import MENU, tip_with_shortcut

Keys = str | QKeySequence.StandardKey | None


def action(
    owner: QObject,
    menu: str,
    text: str,
    do: Callable[[], object],
    keys: Keys = None,
    icon_name: str = "",
    tip: str = "",
) -> QAction:
    """Creates an action of `owner` in a menu ("file", "edit", "view", "run")."""
    made = QAction(text, owner)
    dress(made, menu, keys, icon_name, tip)
    made.triggered.connect(lambda: do())
    return made


def dress(made: QAction, menu: str, keys: Keys = None, icon_name: str = "", tip: str = "") -> None:
    """Sets menu, shortcut, icon and tool tip of an action."""
    made.setProperty(MENU, menu)
    if icon_name:
        made.setIcon(icon(icon_name))
    if keys is not None:
        made.setShortcut(QKeySequence(keys))
    made.setToolTip(tip_with_shortcut(made, tip or made.text().replace("&", "")))

"""Checks on a screen of 1024×768 that the window fits, and that undo, redo and the menu work in the narrow layout."""

from __future__ import annotations

from PySide6.QtCore import QPoint, Qt
from PySide6.QtWidgets import QApplication, QMenu

from tests.window.user import User


def journey(user: User) -> None:
    screen = user.gui(lambda: user.window.screen().availableGeometry())
    user.expect(lambda: screen.contains(user.window.frameGeometry()), "the window is on the screen")
    page = user.show_page("topology")
    for _ in range(3):
        user.key("F10")
        user.expect(lambda: isinstance(QApplication.activePopupWidget(), QMenu), "the menu opens")
        user.key("Escape")
        user.expect(lambda: QApplication.activePopupWidget() is None, "Esc closes the menu")
    user.gui(lambda: page.view.setFocus(Qt.FocusReason.OtherFocusReason))
    user.key("a")
    user.type("worker")
    user.key("Return")
    user.expect(lambda: len(page.editor.value.pools) == 1, "A adds a worker")
    user.click(page.view.viewport(), user.gui(lambda: page.view.viewport().rect().bottomRight()) - QPoint(60, 60))
    user.key("ctrl+z")
    user.expect(lambda: not page.editor.value.pools, "Ctrl+Z takes it back")
    user.key("ctrl+y")
    user.expect(lambda: len(page.editor.value.pools) == 1, "Ctrl+Y does it again")
    user.picture("small-screen")

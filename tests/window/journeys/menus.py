"""Opens every menu three times on every page, by pointer and by F10, and checks that no menu has lost its actions."""

from __future__ import annotations

from PySide6.QtWidgets import QApplication, QMenu

from tests.window.user import User

TIMES = 3


def journey(user: User) -> None:
    for page in user.gui(lambda: list(user.window.keys)):
        user.show_page(page)
        for _ in range(TIMES):
            open_and_close(user, lambda: user.click(user.gui(lambda: user.window.rail.menu_button)))
            open_and_close(user, lambda: user.key("F10"))
        user.picture(f"menus-{page}")


def open_and_close(user: User, open_it: object) -> None:
    assert callable(open_it)
    open_it()
    user.expect(lambda: isinstance(QApplication.activePopupWidget(), QMenu), "the menu opens")
    assert user.gui(lambda: [action.text() for action in QApplication.activePopupWidget().actions()])
    user.key("Escape")
    user.expect(lambda: QApplication.activePopupWidget() is None, "Esc closes the menu")

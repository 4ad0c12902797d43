"""Applies presets and strategies by mouse, by keys, and from the command palette. One Ctrl+Z undoes each."""

from __future__ import annotations

from typing import Any

from PySide6.QtCore import QPoint
from PySide6.QtWidgets import QApplication

from tests.window.user import User
from torchyard_gui.topology.palette_list import PaletteList, PaletteSection


def journey(user: User) -> None:
    page = user.show_page("topology")
    preset_by_mouse(user, page)
    preset_by_keys(user, page)
    strategy_by_mouse_and_keys(user, page)
    command_by_palette(user, page)
    framework_by_mouse(user, page)
    back_to_the_beginning(user, page)


def preset_by_mouse(user: User, page: Any) -> None:
    user.click(row(user, page.palette_.presets, "reduction_server"))
    user.expect(lambda: kind(page) == "reduction_server" and "reducer" in roles(page), "a click applies the preset")
    user.picture("reduction-server")
    user.click(empty_place(user, page))
    user.key("ctrl+z")
    user.expect(lambda: not page.document.value.pools and kind(page) == "none", "Ctrl+Z takes it back in one step")


def preset_by_keys(user: User, page: Any) -> None:
    user.key("a")
    user.expect(page.palette_.search.hasFocus, "A searches the palette")
    user.type("hogwild")
    user.key("Return")
    user.expect(lambda: kind(page) == "hogwild" and roles(page), "Enter applies the preset")
    user.picture("hogwild")


def strategy_by_mouse_and_keys(user: User, page: Any) -> None:
    before = user.gui(lambda: roles(page))
    user.click(page.bar.strategy)
    user.expect(lambda: QApplication.activePopupWidget() is not None, "the strategies are listed")
    user.picture("strategies")
    user.key("Home", "Down", "Return")
    user.expect(lambda: kind(page) == "all_reduce", "keys choose a strategy")
    assert user.gui(lambda: roles(page)) == before, "another strategy keeps the replicas"
    user.key("Down")
    user.expect(lambda: kind(page) != "all_reduce", "an arrow key changes the closed field")
    user.click(empty_place(user, page))
    user.key("ctrl+z")
    user.expect(lambda: kind(page) == "hogwild", "Ctrl+Z takes back both choices, as typing in one field")


def command_by_palette(user: User, page: Any) -> None:
    evaluators = user.gui(lambda: roles(page).count("evaluator"))
    user.key("ctrl+shift+p")
    palette = user.gui(lambda: user.window.palette_)
    user.expect(lambda: palette.isVisible() and palette.field.hasFocus(), "the command palette opens")
    user.type("add evaluator")
    user.expect(lambda: palette.list.count() == 1, "one command fits")
    user.picture("commands")
    user.key("Return")
    user.expect(lambda: roles(page).count("evaluator") == evaluators + 1, "the command adds an evaluator")
    user.key("ctrl+shift+p")
    user.expect(lambda: palette.isVisible() and palette.field.hasFocus(), "it opens again")
    user.type("no such command")
    user.expect(lambda: palette.list.count() == 0, "no command fits")
    user.key("Return", "Escape")
    user.expect(lambda: not palette.isVisible(), "Esc closes it")


def framework_by_mouse(user: User, page: Any) -> None:
    before = user.gui(lambda: page.document.text)
    user.key("a")
    user.expect(page.palette_.search.hasFocus, "A searches the palette")
    user.key("Escape")
    user.expect(lambda: page.palette_.search.text() == "", "Esc clears the search")
    section: PaletteSection = user.gui(lambda: page.palette_._frameworks)
    user.click(user.button("Frameworks", section))
    user.expect(lambda: section.has_rows and section.rows.isVisible(), "the frameworks are unfolded")
    user.click(row(user, user.gui(lambda: section.rows), ""))
    user.expect(lambda: page.document.text != before or dialog_is_open(user), "a click applies a framework")
    user.picture("framework")
    if user.gui(lambda: dialog_is_open(user)):
        user.key("Escape")


def back_to_the_beginning(user: User, page: Any) -> None:
    user.expect(lambda: not dialog_is_open(user), "no question is open")
    user.click(empty_place(user, page))
    for _ in range(6):
        if user.gui(lambda: page.editor.stack.canUndo()):
            user.key("ctrl+z")
    user.expect(lambda: not page.document.value.pools and not page.document.is_modified, "all is taken back")
    user.picture("undone")


def kind(page: Any) -> str:
    return str(page.document.value.strategy.kind.value)


def roles(page: Any) -> list[str]:
    return [pool.role.value for pool in page.document.value.pools for _ in range(pool.replicas)]


def dialog_is_open(user: User) -> bool:
    return QApplication.activeModalWidget() is not None


def row(user: User, rows: PaletteList, key: str) -> QPoint:
    """Returns the centre of the row with the given key, or of the first row if there is no key."""

    def find() -> QPoint:
        item = rows.row_of(key) if key else rows.item(0)
        assert item is not None, key
        return rows.viewport().mapToGlobal(rows.visualItemRect(item).center())

    return user.gui(find)


def empty_place(user: User, page: Any) -> QPoint:
    return user.gui(lambda: page.view.viewport().mapToGlobal(QPoint(60, page.view.viewport().height() - 120)))

"""Shows a page as the main window does, below its bar."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from PySide6.QtWidgets import QFrame, QVBoxLayout, QWidget
from pytestqt.qtbot import QtBot

from tests.gui.theme_fixture import without_theme


class PageWithBar(Protocol):
    """A page of the main window, which is a QWidget."""

    bar: QFrame


Page = TypeVar("Page", bound=PageWithBar)


def show_page(qtbot: QtBot, make: Callable[[], Page], width: int, height: int) -> tuple[Page, QWidget]:
    """Creates a page in a new, active window.

    Returns the page and the window, which the caller must keep, because pytest-qt does not.
    """
    with without_theme():
        page = make()
        assert isinstance(page, QWidget)
        window = QWidget()
        layout = QVBoxLayout(window)
        layout.addWidget(page.bar)
        layout.addWidget(page, 1)
    qtbot.addWidget(window)
    window.resize(width, height)
    with qtbot.waitActive(window):
        window.show()
        window.activateWindow()
    return page, window

"""What the window wants of a page."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, cast, runtime_checkable

from PySide6.QtGui import QAction
from PySide6.QtWidgets import QWidget

from torchyard_gui.windows.status_bar import Said

SUBMENU = "submenu"
"""Property of an action: the menu within that menu, by its title, for what would make it long."""
MENU = "menu"
"""Property of an action: the menu that it belongs to: "file", "edit", "view", "run" or "help"."""


@runtime_checkable
class Page(Protocol):
    """A page is a QWidget with these. `can_close() -> bool`, `panes() -> list[QWidget]` (for F6), `more_actions()`
    (without keys, made when a menu or the palette first shows them) and a signal `status_changed` are taken where it
    has them."""

    title: str
    icon_name: str
    bar: QWidget

    def page_actions(self) -> list[QAction]: ...

    def status_texts(self) -> Iterable[Said]: ...


def as_page(widget: QWidget) -> Page:
    """A page, of which a frame says only that it is a widget: Python has no type for what is both."""
    return cast("Page", widget)

"""The interface of pages to the window."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, cast, runtime_checkable

from PySide6.QtGui import QAction
from PySide6.QtWidgets import QWidget

from torchyard_gui.windows.status_bar import StatusText


@runtime_checkable
class Page(Protocol):
    """A QWidget with these members.

    Optional: `can_close() -> bool`, `panes() -> list[QWidget]` for F6, `more_actions()` (without shortcuts, created
    when a menu or the palette first shows them) and a signal `status_changed`.
    """

    title: str
    icon_name: str
    bar: QWidget

    def page_actions(self) -> list[QAction]: ...

    def status_texts(self) -> Iterable[StatusText]: ...


def as_page(widget: QWidget) -> Page:
    """Casts a widget to Page, because Python cannot express the intersection of both types."""
    return cast("Page", widget)

"""Windows that are built as the program builds them: first the widgets, then what they wear."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from PySide6.QtWidgets import QApplication


@contextmanager
def undressed() -> Iterator[None]:
    """Widgets that are made here get the stylesheet at the end, all at once. While it is there, each of them is dressed
    anew whenever what it is in goes into something else: a page then takes five times as long."""
    application = QApplication.instance()
    assert isinstance(application, QApplication)
    sheet = application.styleSheet()
    application.setStyleSheet("")
    try:
        yield
    finally:
        if not application.styleSheet():  # else the theme was changed meanwhile
            application.setStyleSheet(sheet)

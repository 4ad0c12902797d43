"""A fixture that creates windows as the program does: widgets first, then the style sheet."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from PySide6.QtWidgets import QApplication


@contextmanager
def without_theme() -> Iterator[None]:
    """Applies the style sheet after the widgets have been created.

    With the style sheet, each widget is restyled whenever its parent changes, which makes a page five times slower.
    """
    application = QApplication.instance()
    assert isinstance(application, QApplication)
    sheet = application.styleSheet()
    application.setStyleSheet("")
    try:
        yield
    finally:
        if not application.styleSheet():  # A style sheet exists if the theme was changed in the meantime.
            application.setStyleSheet(sheet)

"""A fixture that creates windows as the program does: the widgets first, and then the style sheet."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from PySide6.QtWidgets import QApplication


@contextmanager
def without_theme() -> Iterator[None]:
    """Delays the style sheet until the widgets have been created.

    With a style sheet, Qt restyles a widget whenever its parent changes, which makes creating a page five times slower.
    """
    application = QApplication.instance()
    assert isinstance(application, QApplication)
    sheet = application.styleSheet()
    application.setStyleSheet("")
    try:
        yield
    finally:
        if not application.styleSheet():  # There is a style sheet only if the theme was changed in the meantime.
            application.setStyleSheet(sheet)

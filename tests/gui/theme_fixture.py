"""Windows are built as in the program: widgets first, then the style sheet."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from PySide6.QtWidgets import QApplication


@contextmanager
def without_theme() -> Iterator[None]:
    """Applies the style sheet after the widgets were created.

    With it, each widget is restyled whenever its parent changes: a page then takes five times as long.
    """
    application = QApplication.instance()
    assert isinstance(application, QApplication)
    sheet = application.styleSheet()
    application.setStyleSheet("")
    try:
        yield
    finally:
        if not application.styleSheet():  # otherwise the theme has changed meanwhile
            application.setStyleSheet(sheet)

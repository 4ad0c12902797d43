"""The QApplication, with the theme, for all benchmarks of the window."""

from __future__ import annotations

from functools import cache

from PySide6.QtWidgets import QApplication

from torchyard_gui.theme.theme import theme


@cache  # The cache keeps a reference, without which the application would be destroyed.
def themed_application() -> QApplication:
    there = QApplication.instance()
    application = there if isinstance(there, QApplication) else QApplication([])
    theme().install(application)
    return application

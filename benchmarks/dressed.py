"""The application of the benchmarks that draw: one for all of them, in the window's theme."""

from __future__ import annotations

from functools import cache

from PySide6.QtWidgets import QApplication

from torchyard_gui.theme.theme import theme


@cache  # which keeps it: without anybody who knows it, Qt's application is gone
def dressed_application() -> QApplication:
    there = QApplication.instance()
    application = there if isinstance(there, QApplication) else QApplication([])
    theme().install(application)
    return application

"""Opens the window as `torchyard-gui` does, and performs a journey (one scenario of `tests.window.journeys`) in it.

python -m tests.window.run [--pictures FOLDER] JOURNEY ARGUMENTS OF torchyard-gui

The exit status is 0 if every step of the journey had the expected result, and neither Qt nor the log printed a warning.
"""

from __future__ import annotations

import argparse
import importlib
import logging
import os
import sys
import threading
import traceback
from pathlib import Path
from types import TracebackType
from typing import Any

from PySide6.QtCore import QMessageLogContext, QtMsgType, qInstallMessageHandler

from tests.window.user import User
from torchyard_gui import app
from torchyard_gui.windows.main_window import MainWindow


class Complaints(logging.Handler):
    """Collects exceptions, and the warnings of Qt and of the log."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(self.format(record))

    def take_exception(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        """Records an exception from a slot or an overridden method, which Qt would otherwise only print."""
        self.messages.append("".join(traceback.format_exception(kind, error, trace)))

    def take_qt(self, kind: QtMsgType, context: QMessageLogContext, message: str) -> None:
        if kind in (QtMsgType.QtWarningMsg, QtMsgType.QtCriticalMsg, QtMsgType.QtFatalMsg):
            self.messages.append(f"Qt: {message}")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("journey")
    parser.add_argument("--pictures", type=Path)
    parser.add_argument("--part", default="journey", help="function of the journey's module")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    arguments = [one for one in options.arguments if one != "--"]
    perform = getattr(importlib.import_module(f"tests.window.journeys.{options.journey}"), options.part)
    complaints = Complaints()
    logging.getLogger().addHandler(complaints)
    qInstallMessageHandler(complaints.take_qt)
    sys.excepthook = complaints.take_exception
    make_window = app.make_window

    def make_and_begin(*arguments: Any) -> MainWindow:
        window = make_window(*arguments)
        user = User(window, arguments, options.pictures)
        threading.Thread(target=travel, args=(user,), daemon=True).start()
        return window

    def travel(user: User) -> None:
        status = 1
        try:
            user.expect(lambda: user.window.isActiveWindow() and all(map(user.window.has_page, user.window.keys)))
            perform(user)
            assert not complaints.messages, complaints.messages
            status = 0
        except BaseException:  # Any exception ends the journey and is reported.
            traceback.print_exc()
            user.picture("failed")
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)

    app.make_window = make_and_begin
    return app.main(arguments)


if __name__ == "__main__":
    sys.exit(main())

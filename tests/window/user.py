"""Simulates a user of the real window. Pointer and key events come from another X client; the state of widgets is read
on the GUI thread.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

from PySide6.QtCore import QObject, QPoint, Qt, Signal
from PySide6.QtWidgets import QAbstractButton, QApplication, QWidget

from tests.waiting import WITHIN_S
from torchyard_gui.windows.main_window import MainWindow

T = TypeVar("T")
LOOK_EVERY_S = 0.02
STEP_S = 0.01
"""Time in seconds between two successive pointer positions of a drag."""


class GuiThread(QObject):
    """Runs functions on the GUI thread, even while a dialog or a drag runs its own event loop."""

    _posted = Signal(object)

    def __init__(self) -> None:
        super().__init__()
        self._posted.connect(lambda work: work(), Qt.ConnectionType.QueuedConnection)

    def run(self, function: Callable[[], T]) -> T:
        answer: Future[T] = Future()

        def work() -> None:
            try:
                answer.set_result(function())
            except BaseException as error:  # The exception is raised again in the caller's thread.
                answer.set_exception(error)

        self._posted.emit(work)
        return answer.result(WITHIN_S)


class User:
    """Points, clicks, drags and types. Positions are global, in display pixels."""

    def __init__(self, window: MainWindow, arguments: tuple[Any, ...], pictures: Path | None) -> None:
        self.window = window
        self.arguments = arguments
        """Arguments of `app.make_window`: the home, the fleet file, and the file to open."""
        self._gui = GuiThread()
        self.pictures = pictures
        self._clicked_at = 0.0

    # The screen

    def gui(self, function: Callable[[], T]) -> T:
        """Runs a function on the GUI thread and returns its result."""
        return self._gui.run(function)

    def expect(self, condition: Callable[[], object], what: str = "", within_s: float = WITHIN_S) -> None:
        """Waits until a condition is true. The condition is evaluated on the GUI thread. Fails after `within_s`
        seconds.
        """
        deadline = time.monotonic() + within_s
        while not self.gui(condition):
            if time.monotonic() > deadline:
                self.picture("failed")
                raise AssertionError(f"did not happen: {what or condition}")
            time.sleep(LOOK_EVERY_S)

    def picture(self, name: str) -> None:
        """Saves a screenshot of the whole display, if pictures are wanted."""
        if self.pictures is not None:
            path = str(self.pictures / f"{name}.png")
            self.gui(lambda: self.window.screen().grabWindow(0).save(path))

    def button(self, text: str, around: QWidget | None = None) -> QAbstractButton:
        """Returns the visible button with the given text or accessible name."""

        def find() -> list[QAbstractButton]:
            inside = [around] if around is not None else QApplication.topLevelWidgets()
            buttons = [button for each in inside if each.isVisible() for button in each.findChildren(QAbstractButton)]
            return [
                button
                for button in buttons
                if button.isVisible() and text in (button.text().replace("&", ""), button.accessibleName())
            ]

        self.expect(find, f"a button “{text}”")
        return self.gui(find)[0]

    def point(self, widget: QWidget, at: QPoint | None = None) -> QPoint:
        """Returns the global position of a point in a widget, by default its centre.

        The position is returned once it no longer changes: a new widget has its place only when it has been laid out.
        Fails if another widget covers this point.
        """

        def find() -> QPoint:
            there = widget.mapToGlobal(at if at is not None else widget.rect().center())
            top = QApplication.widgetAt(there)
            assert top is not None, f"{widget} is not on the screen at {there}"
            assert top is widget or widget.isAncestorOf(top) or top.isAncestorOf(widget), f"{top} covers {widget}"
            return there

        deadline = time.monotonic() + WITHIN_S
        there, before = self.gui(find), None
        while there != before and time.monotonic() < deadline:
            time.sleep(LOOK_EVERY_S)
            there, before = self.gui(find), there
        return there

    # Pointer and keys

    def click(self, target: QWidget | QPoint, at: QPoint | None = None, button: int = 1) -> None:
        self._wait_for_single_click()
        self.move(target, at)
        self._press_buttons("click", str(button))

    def double_click(self, target: QWidget | QPoint, at: QPoint | None = None) -> None:
        self._wait_for_single_click()
        self.move(target, at)
        self._press_buttons("click", "--repeat", "2", "--delay", "60", "1")

    def move(self, target: QWidget | QPoint, at: QPoint | None = None) -> QPoint:
        there = target if isinstance(target, QPoint) else self.point(target, at)
        xdotool("mousemove", str(there.x()), str(there.y()))
        return there

    def press(self) -> None:
        self._press_buttons("mousedown", "1")

    def _wait_for_single_click(self) -> None:
        """Waits for the interval of a double click, so that two clicks are not interpreted as a double click.

        A click waits before the pointer moves, since its target may be laid out anew during the wait.
        """
        interval_s = self.gui(lambda: QApplication.styleHints().mouseDoubleClickInterval()) / 1000
        time.sleep(max(0.0, self._clicked_at + interval_s + STEP_S - time.monotonic()))

    def _press_buttons(self, *command: str) -> None:
        self._wait_for_single_click()
        xdotool(*command)
        # On a busy machine, xdotool may press the button long after it starts, but never after it exits, so the time is
        # taken when it exits.
        self._clicked_at = time.monotonic()

    def release(self) -> None:
        xdotool("mouseup", "1")

    def drag(self, start: QPoint, end: QPoint, steps: int = 12, *, release: bool = True) -> None:
        """Presses the button at `start`, moves the pointer in small steps, and releases the button at `end`
        unless `release` is False.
        """
        self.move(start)
        self.press()
        for step in range(1, steps + 1):
            time.sleep(STEP_S)  # The pauses make the drag as slow as a person's; they do not wait for an event.
            self.move(start + (end - start) * step / steps)
        if release:
            self.release()

    def key(self, *keys: str) -> None:
        """Presses keys by their X names, such as `ctrl+s`, `F10` or `Escape`."""
        xdotool("key", "--delay", "10", *keys)

    def type(self, text: str) -> None:
        xdotool("type", "--delay", "5", "--", text)

    # The window

    def show_page(self, key: str) -> Any:
        """Opens a page by its button in the rail."""
        self.click(self.gui(lambda: self.window.rail.button(self.window.keys.index(key))))
        self.expect(lambda: self.window.current == key, f"the page {key}")
        return self.gui(lambda: self.window.page(key))


def xdotool(*arguments: str) -> None:
    subprocess.run(["xdotool", *arguments], check=True, timeout=WITHIN_S, env=os.environ)

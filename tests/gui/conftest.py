"""Fixtures of the window's tests, and a check that no test leaves a widget, timer, thread or Qt warning behind."""

from __future__ import annotations

import gc
import os
import subprocess
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")

import shiboken6
from PySide6.QtCore import (
    QCoreApplication,
    QEvent,
    QMessageLogContext,
    QThread,
    QThreadPool,
    QTimer,
    QtMsgType,
    qInstallMessageHandler,
)
from PySide6.QtWidgets import QApplication, QWidget
from pytestqt.qtbot import QtBot

from tests.gui.job_threads import job_threads
from tests.gui.living_objects import living_objects
from tests.waiting import NotInTime, wait_until
from torchyard_core.home import Home
from torchyard_gui.theme.theme import theme

BAD = (QtMsgType.QtWarningMsg, QtMsgType.QtCriticalMsg, QtMsgType.QtFatalMsg)
# Qt's offscreen platform logs these messages even if the window has no fault.
EXPECTED = ("This plugin does not support",)
POOL_ENDS_WITHIN_MS = 20_000
FOLLOWERS_END_WITHIN_S = 60
FOLLOWER = "RunFeed._begin"
"""The job that ends only when it is cancelled or its run has ended."""
SERVER_ENDS_WITHIN_S = 60
PATIENCE_MS = 30_000
"""Timeout in milliseconds for events that are fast except on a busy machine."""


class PatientBot(QtBot):
    """A qtbot whose default timeout is longer than pytest-qt's five seconds."""

    def waitUntil(self, callback: Callable[[], object], *, timeout: int = PATIENCE_MS) -> None:
        super().waitUntil(callback, timeout=timeout)

    def waitSignal(self, signal: Any, *, timeout: int = PATIENCE_MS, **more: Any) -> Any:
        return super().waitSignal(signal, timeout=timeout, **more)

    def waitActive(self, widget: QWidget, *, timeout: int = PATIENCE_MS) -> Any:
        return super().waitActive(widget, timeout=timeout)

    def waitExposed(self, widget: QWidget, *, timeout: int = PATIENCE_MS) -> Any:
        return super().waitExposed(widget, timeout=timeout)


@pytest.fixture
def qtbot(qapp: QApplication, request: pytest.FixtureRequest) -> QtBot:
    return PatientBot(request)


@pytest.fixture(autouse=True)
def nothing_left_on_screen(qapp: QApplication) -> Iterator[None]:
    """Fails a test that leaves a window, a timer, a thread, a followed run, work of a thread pool or a Qt warning."""
    complaints: list[str] = []

    def hear(kind: QtMsgType, context: QMessageLogContext, message: str) -> None:
        if kind in BAD and not message.startswith(EXPECTED):
            complaints.append(f"Qt said: {message}")
        if before is not None:
            before(kind, context, message)

    theme().set_mode("light")
    theme().install(qapp)
    old, old_followers = set(_alive()), job_threads(FOLLOWER)
    gc.disable()  # Garbage collection on a background thread would destroy widgets there. It is run below instead.
    before: Callable[..., object] | None = qInstallMessageHandler(hear)
    try:
        yield
        # pytest-qt has closed the test's widgets. Qt deletes them in the next iteration of the event loop.
        QCoreApplication.sendPostedEvents(None, QEvent.Type.DeferredDelete.value)
        QCoreApplication.processEvents()
        gc.collect()
        # Objects that an earlier test left behind have already been reported for that test.
        complaints += [words for key, words in _alive().items() if key not in old]
        if not QThreadPool.globalInstance().waitForDone(POOL_ENDS_WITHIN_MS):
            complaints.append("work on Qt's thread pool")
        with suppress(NotInTime):
            wait_until(lambda: job_threads(FOLLOWER) <= old_followers, FOLLOWERS_END_WITHIN_S)
        complaints += ["a thread that follows a run"] * len(job_threads(FOLLOWER) - old_followers)
    finally:
        gc.enable()
        qInstallMessageHandler(before)
        theme().set_mode("light")
    if complaints:
        pytest.fail("This test leaves behind: " + "; ".join(complaints), pytrace=False)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """Returns an empty home folder."""
    return Home(tmp_path / "home")


@pytest.fixture(scope="session")
def display() -> Iterator[str]:
    """Yields a virtual display, for features that Qt's offscreen platform does not have."""
    reading, writing = os.pipe()
    server = subprocess.Popen(
        ["Xvfb", "-displayfd", str(writing), "-screen", "0", "1440x900x24", "-nolisten", "tcp"],
        pass_fds=[writing],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(writing)
    with os.fdopen(reading) as numbers:
        number = numbers.readline().strip()  # The server prints the number once it accepts connections.
    assert number, "Xvfb did not start"
    yield f":{number}"
    server.terminate()
    server.wait(SERVER_ENDS_WITHIN_S)


_seen: weakref.WeakSet[QTimer | QThread] = weakref.WeakSet()
"""Objects that were alive after earlier tests. Without this list, those that are kept for later tests would be reported
again.
"""


def _alive() -> dict[int, str]:
    """Returns a description of each window, timer and thread that is open or running, by the object's identity."""
    _seen.update(living_objects(QTimer | QThread))
    alive = {
        shiboken6.getCppPointer(widget)[0]: (
            f"open window {type(widget).__name__} “{widget.windowTitle() or widget.objectName()}”"
        )
        for widget in QApplication.topLevelWidgets()
        if widget.isVisible()
    }
    for thing in _seen:
        if not shiboken6.isValid(thing):
            continue
        key = shiboken6.getCppPointer(thing)[0]
        if isinstance(thing, QTimer) and thing.isActive():
            alive[key] = f"running timer of {type(thing.parent()).__name__}"
        elif isinstance(thing, QThread) and thing.isRunning():
            alive[key] = f"running thread {thing.objectName() or type(thing).__name__}"
    return alive

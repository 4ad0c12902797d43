"""Tests that a window frees its objects, threads and memory after it has been opened, used and closed."""

from __future__ import annotations

import gc
import os
import threading
from collections import Counter
from pathlib import Path

import shiboken6
from PySide6.QtCore import QCoreApplication, QEvent, QObject, Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QGraphicsItem
from pytestqt.qtbot import QtBot
from tools.sample_fleet import let_hosts_answer, write_sample

from torchyard_core.topology.file import read_topology
from torchyard_gui import app
from torchyard_gui.windows.connections import WindowConnections

CONTROL = Qt.KeyboardModifier.ControlModifier
SHIFT = Qt.KeyboardModifier.ShiftModifier
WARM_UP, TIMES = 3, 8
GROWS_AT_MOST_MB = 6.0
"""Growth over TIMES windows of several megabytes each: memory kept by the allocator, not a window."""


def use_a_window(qtbot: QtBot, folder: Path) -> None:
    """Opens the window with eight hosts that are never contacted, uses each page, and closes the window."""
    home, fleet_file, file = write_sample(folder, "eight")
    window = app.make_window(home, fleet_file, file)
    window.painted.disconnect()
    wiring = window.findChild(WindowConnections)
    assert isinstance(wiring, WindowConnections)
    wiring.runs.refresh = lambda: None  # type: ignore[method-assign]  # asks no host
    let_hosts_answer(wiring.fleet)
    window.make_pages()
    window.show()
    window.activateWindow()
    qtbot.waitUntil(window.isActiveWindow)
    for number, key in enumerate(window.keys):
        QTest.keyClick(window, Qt.Key(Qt.Key.Key_1.value + number), CONTROL)
        assert window.current == key
        QApplication.processEvents()
    page = window.show_page("topology")
    page.editor.select(["worker-1", "worker-2"])  # type: ignore[attr-defined]
    page.editor.set_name("another")  # type: ignore[attr-defined]
    window.show_page("fleet").add_host()  # type: ignore[attr-defined]
    QTest.keyClick(window.page("fleet").dialog, Qt.Key.Key_Escape)  # type: ignore[attr-defined]
    QTest.keyClick(window, Qt.Key.Key_P, CONTROL | SHIFT)
    QTest.keyClick(window.palette_.field, Qt.Key.Key_Escape)
    assert file is not None
    assert read_topology(file).topology is not None
    wiring.document.start_new()
    assert window.close()
    window.deleteLater()
    del window, wiring, page
    settle()


def settle() -> None:
    for _ in range(3):
        QCoreApplication.sendPostedEvents(None, QEvent.Type.DeferredDelete.value)
        QApplication.processEvents()
        gc.collect()


def objects() -> Counter[str]:
    """Returns the number of live Qt objects, by class."""
    kinds = QObject | QGraphicsItem
    alive = (thing for thing in gc.get_objects() if issubclass(type(thing), kinds) and shiboken6.isValid(thing))
    return Counter(type(thing).__name__ for thing in alive)


def memory_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def test_windows_that_come_and_go_leave_nothing(qtbot: QtBot, tmp_path: Path) -> None:
    for number in range(WARM_UP):
        use_a_window(qtbot, tmp_path / f"warm-{number}")
    before, shown, threads, memory = objects(), QApplication.topLevelWidgets(), threading.active_count(), memory_mb()
    for number in range(TIMES):
        use_a_window(qtbot, tmp_path / str(number))
    assert objects() - before == Counter()
    assert len(QApplication.topLevelWidgets()) <= len(shown)
    qtbot.waitUntil(lambda: threading.active_count() <= threads)
    assert memory_mb() - memory < GROWS_AT_MOST_MB

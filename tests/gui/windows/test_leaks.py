"""Tests that a window that has been opened, used and closed leaves no objects, threads or memory behind."""

from __future__ import annotations

import gc
import os
import threading
from collections import Counter
from pathlib import Path

import shiboken6
from PySide6.QtCore import QCoreApplication, QEvent, QObject, Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QFrame, QGraphicsItem
from pytestqt.qtbot import QtBot
from tools.sample_fleet import let_hosts_answer, write_sample

from tests.gui.living_objects import living_objects
from tests.waiting import wait_until
from torchyard_core.topology.file import read_topology
from torchyard_gui import app
from torchyard_gui.windows.signal_connections import SignalConnections

CONTROL = Qt.KeyboardModifier.ControlModifier
SHIFT = Qt.KeyboardModifier.ShiftModifier
WARM_UP, TIMES = 3, 8
GROWS_AT_MOST_MB = 6.0
"""Maximum growth of memory over TIMES windows, each of which takes several megabytes. The allocator may keep this much,
but one window that is never freed would exceed it.
"""


def use_a_window(qtbot: QtBot, folder: Path) -> None:
    """Opens the window with eight hosts that are never contacted, uses each page, and closes the window."""
    home, fleet_file, file = write_sample(folder, "eight")
    window = app.make_window(home, fleet_file, file)
    window.painted.disconnect()
    wiring = window.findChild(SignalConnections)
    assert isinstance(wiring, SignalConnections)
    wiring.runs.refresh = lambda: None  # type: ignore[method-assign]  # This prevents contact with hosts.
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
    page.editor.select(["worker-1", "worker-2"])  # type: ignore[attr-defined]  # Only the subclass has this attribute.
    page.editor.set_name("another")  # type: ignore[attr-defined]  # Only the subclass has this attribute.
    window.show_page("fleet").add_host()  # type: ignore[attr-defined]  # Only the subclass has this attribute.
    QTest.keyClick(window.page("fleet").dialog, Qt.Key.Key_Escape)  # type: ignore[attr-defined]  # Only the subclass has this attribute.
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


def live_objects() -> list[QObject | QGraphicsItem]:
    found = living_objects(QObject | QGraphicsItem)
    return [thing for thing in found if shiboken6.isValid(thing) and not is_popup(thing)]


def is_popup(thing: QObject | QGraphicsItem) -> bool:
    """Returns whether an object is the popup of a combo box.

    Popups are not counted, because Qt creates them late, even for combo boxes that an earlier test left behind. The
    combo boxes are counted.
    """
    return isinstance(thing, QFrame) and thing.metaObject().className() == "QComboBoxPrivateContainer"


def objects() -> Counter[str]:
    """Returns the number of live Qt objects, by class."""
    return Counter(type(thing).__name__ for thing in live_objects())


def described(kinds: Counter[str]) -> str:
    """Returns the live widgets of some classes with their C++ class, name and parent, which help to find what keeps
    them alive.
    """
    found = [thing for thing in live_objects() if isinstance(thing, QObject) and type(thing).__name__ in kinds]
    lines = [f"{one.metaObject().className()} “{one.objectName()}” in {one.parent()}" for one in found]
    return "\n".join([str(kinds), *lines])


def memory_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def test_closed_windows_leave_nothing(qtbot: QtBot, tmp_path: Path) -> None:
    for number in range(WARM_UP):
        use_a_window(qtbot, tmp_path / f"warm-{number}")
    before, shown, threads, memory = objects(), QApplication.topLevelWidgets(), threading.active_count(), memory_mb()
    for number in range(TIMES):
        use_a_window(qtbot, tmp_path / str(number))
    # On a busy machine, a job may refer to the closed window for some time, so settle() is repeated.
    more = Counter[str]()

    def is_settled() -> bool:
        nonlocal more
        settle()
        more = objects() - before
        return not more

    wait_until(is_settled, 20, what=lambda: described(more))
    assert len(QApplication.topLevelWidgets()) <= len(shown)
    qtbot.waitUntil(lambda: threading.active_count() <= threads)
    assert memory_mb() - memory < GROWS_AT_MOST_MB

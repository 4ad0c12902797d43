"""Tests that garbage is collected on the GUI thread only, because that destroys Qt objects."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from PySide6.QtCore import QObject, Qt
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QWidget
from pytestqt.qtbot import QtBot

from torchyard_core.home import Home
from torchyard_gui import app
from torchyard_gui.bridge.garbage_collection import LONGEST_DRAG_S, GarbageCollector


class Node(QObject):
    """An object that refers to itself, so that only the garbage collector destroys it."""

    def __init__(self, destroyed_on: list[int]) -> None:
        super().__init__()
        self.itself = self
        # The slot runs on the thread that destroys the object.
        self.destroyed.connect(lambda: destroyed_on.append(threading.get_ident()), Qt.ConnectionType.DirectConnection)


@pytest.fixture(autouse=True)
def automatic_collection() -> Iterator[None]:
    """Turns automatic collection on, as it is in a new process."""
    was_enabled = gc.isenabled()
    gc.collect()
    gc.enable()
    yield
    gc.disable()
    if was_enabled:
        gc.enable()


@pytest.fixture(autouse=True)
def held(monkeypatch: pytest.MonkeyPatch) -> list[Qt.MouseButton]:
    """The mouse buttons that Qt counts as pressed. None is pressed at first, whatever earlier tests have pressed."""
    buttons: list[Qt.MouseButton] = []
    monkeypatch.setattr(QGuiApplication, "mouseButtons", lambda: buttons[-1] if buttons else Qt.MouseButton.NoButton)
    return buttons


def allocated_on_another_thread() -> list[list[int]]:
    """Returns many objects that another thread has created, as a job does that reads a long answer."""
    kept: list[list[int]] = []
    thread = threading.Thread(target=lambda: kept.extend([number] for number in range(50 * gc.get_threshold()[0])))
    thread.start()
    thread.join()
    return kept


def test_allocations_of_other_threads_destroy_no_qt_object(qtbot: QtBot) -> None:
    parent, destroyed_on = QWidget(), list[int]()
    qtbot.addWidget(parent)
    GarbageCollector(parent)
    Node(destroyed_on)
    answer = allocated_on_another_thread()
    assert not destroyed_on
    qtbot.waitUntil(lambda: bool(destroyed_on))
    assert destroyed_on == [threading.get_ident()]
    assert answer, "while objects are alive, they count towards the next collection"


def test_a_full_collection_waits_until_there_are_many_more_objects(
    qtbot: QtBot, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent, collected = QWidget(), list[int]()
    qtbot.addWidget(parent)
    collector = GarbageCollector(parent)
    collect = gc.collect
    monkeypatch.setattr(gc, "get_count", lambda: (0, 11, 11))
    monkeypatch.setattr(gc, "collect", lambda generation=2: collected.append(generation) or collect(generation))
    collector.collect()
    collector.collect()
    assert collected == [2, 1]
    collector._blocks //= 2
    collector.collect()
    assert collected == [2, 1, 2]


def test_a_drag_delays_collection_but_a_release_that_qt_has_missed_does_not(
    qtbot: QtBot, monkeypatch: pytest.MonkeyPatch, held: list[Qt.MouseButton]
) -> None:
    parent, collected = QWidget(), list[int]()
    qtbot.addWidget(parent)
    collector = GarbageCollector(parent)
    monkeypatch.setattr(gc, "get_count", lambda: (0, 11, 0))
    monkeypatch.setattr(gc, "collect", lambda generation=2: collected.append(generation))
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    held.append(Qt.MouseButton.LeftButton)
    collector.collect()
    now[0] += LONGEST_DRAG_S - 1
    collector.collect()
    assert not collected
    now[0] += 2
    collector.collect()
    assert collected == [1]
    held.clear()
    collector.collect()
    held.append(Qt.MouseButton.LeftButton)
    collector.collect()
    assert collected == [1, 1], "the next drag delays collection again"


def test_the_window_collects_its_garbage_itself(qtbot: QtBot, home: Home, tmp_path: Path) -> None:
    window = app.make_window(home, tmp_path / "fleet.yaml")
    qtbot.addWidget(window)
    assert not gc.isenabled()
    assert window.findChild(GarbageCollector) is not None

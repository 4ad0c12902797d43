"""Tests of showing a long log, of which only some pages are read: scrolling, following, searching and copying."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from PySide6.QtCore import QPoint, QPointF, Qt
from PySide6.QtGui import QGuiApplication, QWheelEvent
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication

from tests.core.examples import host
from tests.gui.runs.fake_hosts import Acting, close, runs_model
from torchyard_core.home import Home
from torchyard_gui.bridge.log_feed import LogFeed
from torchyard_gui.bridge.runs_model import RunsModel
from torchyard_gui.runs.logs.log_painting import line_height, matches
from torchyard_gui.runs.logs.log_view import LogView

LINES = 300_000


@pytest.fixture
def run() -> Acting:
    made = Acting((host("gpu-a", 1),), "{name: w, role: worker, replicas: 1, gpus: 1}")
    made.logs["worker-0"] = b"".join(b"line %d of the log\n" % number for number in range(LINES))
    return made


@pytest.fixture
def model(qtbot: Any, home: Home, run: Acting) -> Iterator[RunsModel]:
    made = runs_model(home, run)
    yield made
    close(made)


@pytest.fixture
def feed(model: RunsModel, run: Acting, home: Home) -> Iterator[LogFeed]:
    run.note(home)
    model.read_history()
    made = model.log(model.runs[0], "gpu-a", "worker-0")
    yield made
    made.close()


@pytest.fixture
def view(qtbot: Any, feed: LogFeed) -> Iterator[LogView]:
    made = LogView()
    qtbot.addWidget(made)
    made.resize(600, 300)
    made.show()
    made.set_feed(feed)
    qtbot.waitUntil(lambda: made.shown_lines[-1:] == [f"line {LINES - 1} of the log"])
    yield made
    made.set_feed(None)


def read(run: Acting) -> int:
    """Returns how many bytes have been read."""
    return sum(params["limit"] for method, params in run.links["gpu-a"].asked if method == "logs.read")


def turn_wheel(view: LogView, notches: int) -> None:
    at = QPointF(100, 100)
    event = QWheelEvent(
        at,
        QPointF(view.viewport().mapToGlobal(at.toPoint())),
        QPoint(),
        QPoint(0, 120 * notches),
        Qt.MouseButton.NoButton,
        Qt.KeyboardModifier.NoModifier,
        Qt.ScrollPhase.NoScrollPhase,
        False,
    )
    QApplication.sendEvent(view.viewport(), event)


def test_a_log_opens_at_its_end_without_being_read(view: LogView, run: Acting) -> None:
    assert view.is_following
    assert len(run.logs["worker-0"]) > 6_000_000
    assert read(run) < 300_000


def test_scrolling_up_leaves_the_end_and_the_end_key_returns(qtbot: Any, view: LogView, run: Acting) -> None:
    before = view.shown_lines[0]
    turn_wheel(view, 1)
    assert not view.is_following
    number = int(before.split()[1])
    assert view.shown_lines[0] == f"line {number - 3} of the log"
    run.logs["worker-0"] += b"one more\n"
    qtbot.wait(500)
    assert view.shown_lines[0] == f"line {number - 3} of the log"
    QTest.keyClick(view, Qt.Key.Key_End)
    qtbot.waitUntil(lambda: view.shown_lines[-1:] == ["one more"])
    assert view.is_following
    QTest.keyClick(view, Qt.Key.Key_Home)
    qtbot.waitUntil(lambda: view.shown_lines[:1] == ["line 0 of the log"])
    QTest.keyClick(view, Qt.Key.Key_PageDown)
    assert int(view.shown_lines[0].split()[1]) > 8
    assert read(run) < 700_000


def test_the_bar_goes_anywhere(qtbot: Any, view: LogView, run: Acting) -> None:
    bar = view.verticalScrollBar()
    bar.setSliderPosition(bar.maximum() // 2)
    bar.triggerAction(bar.SliderAction.SliderMove)
    qtbot.waitUntil(lambda: bool(view.shown_lines) and abs(int(view.shown_lines[0].split()[1]) - LINES / 2) < 8000)
    assert not view.is_following
    assert read(run) < 700_000


def test_new_lines_are_followed(qtbot: Any, view: LogView, run: Acting) -> None:
    run.logs["worker-0"] += "last words, zwölf\n".encode()
    qtbot.waitUntil(lambda: view.shown_lines[-1:] == ["last words, zwölf"])
    run.logs["worker-0"] += b"x" * 50 + b"\n" + b"much more\n" * 50_000  # The new lines are longer than one block.
    qtbot.waitUntil(lambda: view.shown_lines[-1:] == ["much more"])


def test_words_are_found_far_away_both_ways(qtbot: Any, view: LogView, run: Acting) -> None:
    with qtbot.waitSignal(view.search_ended) as found:
        view.search("LINE 1234 of", backwards=True)
    assert found.args == [True]
    assert "line 1234 of the log" in view.shown_lines
    with qtbot.waitSignal(view.search_ended) as found:
        view.search("line 250000 of", backwards=False)
    assert found.args == [True]
    assert "line 250000 of the log" in view.shown_lines
    with qtbot.waitSignal(view.search_ended) as found:
        view.search("nowhere", backwards=False)
    assert found.args == [False]
    assert "line 250000 of the log" in view.shown_lines


def test_lines_are_selected_and_copied(qtbot: Any, view: LogView) -> None:
    first, third = view.shown_lines[0], view.shown_lines[2]
    height = line_height()
    QTest.mouseClick(view.viewport(), Qt.MouseButton.LeftButton, pos=QPoint(50, 5))
    shift = Qt.KeyboardModifier.ShiftModifier
    QTest.mouseClick(view.viewport(), Qt.MouseButton.LeftButton, shift, QPoint(50, int(2.5 * height)))
    QTest.keyClick(view, Qt.Key.Key_C, Qt.KeyboardModifier.ControlModifier)
    assert QGuiApplication.clipboard().text().splitlines()[::2] == [first, third]


def test_a_host_that_hangs_up_is_told_and_the_log_goes_on_later(
    qtbot: Any, view: LogView, run: Acting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torchyard_gui.bridge.log_feed.RETRY_MS", 50)
    said: list[str] = []
    view.problem_changed.connect(said.append)
    run.down.add("gpu-a")
    run.links["gpu-a"].break_off()
    qtbot.waitUntil(lambda: any("gpu-a" in text for text in said))
    run.logs["worker-0"] += b"back\n"
    run.down.clear()
    qtbot.waitUntil(lambda: view.shown_lines[-1:] == ["back"])
    assert said[-1] == ""


@pytest.mark.parametrize(
    ("text", "wanted", "expected"),
    [
        ("Loss 1, loss 2", "LOSS", [(0, 4), (8, 12)]),
        ("KÖLN köln", "köln", [(5, 9)]),  # The search reads bytes, and ignores the case of ASCII letters alone.
        ("İstanbul a.b", "a.b", [(9, 12)]),
    ],
)
def test_the_matches_that_are_painted_are_those_of_the_search(
    text: str, wanted: str, expected: list[tuple[int, int]]
) -> None:
    assert matches(text, wanted) == expected

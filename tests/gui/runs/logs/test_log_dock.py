"""Tests of the log dock, which shows the logs of one replica, of the selected replicas, of all replicas, or of all
ranks of one replica.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import pytest
from PySide6.QtCore import QPoint, Qt
from PySide6.QtGui import QGuiApplication
from PySide6.QtTest import QTest

from tests.core.examples import host
from tests.gui.runs.conftest import MakePage
from tests.gui.runs.fake_hosts import BEGAN, Acting
from torchyard_core.home import Home
from torchyard_gui.runs.logs import log_dock, log_search
from torchyard_gui.runs.logs.log_dock import ALL, LogDock
from torchyard_gui.runs.logs.log_merge import TOP
from torchyard_gui.runs.page import RunsPage

LEFT = Qt.MouseButton.LeftButton


@pytest.fixture
def dock(page: RunsPage, run: Acting) -> LogDock:
    for replica in run.plan.replicas:
        lines = [f"step {number} of {replica.name}\n".encode() for number in range(50)]
        run.logs[replica.name] = b"".join(lines)
        run.log_times[replica.name] = [
            (size, BEGAN + number) for number, size in enumerate(accumulate(len(line) for line in lines))
        ]
    run.logs["worker-2"] += b"needle in worker-2\n"
    return page.run_view.log


def names_shown(dock: LogDock) -> set[str]:
    return set(dock.view.shown_names)


def choose(dock: LogDock, entry: str) -> None:
    """Chooses an entry of the combo box with the keyboard."""
    dock.replica.setFocus()
    QTest.keyClick(dock.replica, Qt.Key.Key_Home)
    while not dock.replica.currentText().startswith(entry):
        before = dock.replica.currentIndex()
        QTest.keyClick(dock.replica, Qt.Key.Key_Down)
        assert dock.replica.currentIndex() != before, f"there is no {entry}"


def test_all_replicas_are_read_as_one(qtbot: Any, dock: LogDock, run: Acting) -> None:
    dock.set_open(True)
    choose(dock, "All 4 replicas")
    everybody = {replica.name for replica in run.plan.replicas}
    qtbot.waitUntil(lambda: names_shown(dock) == everybody)
    run.logs["worker-1"] += b"news\n"
    qtbot.waitUntil(lambda: dock.view.shown_lines[-1:] == ["news"])
    assert dock.view.shown_names[-1] == "worker-1"
    run.logs["chief-0"] += b"more news\n"
    qtbot.waitUntil(lambda: dock.view.shown_lines[-2:] == ["news", "more news"])


def test_lines_of_all_replicas_stand_in_the_order_of_their_times(qtbot: Any, dock: LogDock, run: Acting) -> None:
    names = [replica.name for replica in run.plan.replicas]
    dock.set_open(True)
    choose(dock, "All 4 replicas")
    qtbot.waitUntil(lambda: len(names_shown(dock)) == 4)
    shown = [line for line in dock.view.shown_lines if line.startswith("step")]
    assert shown == [f"step {number} of {name}" for number in range(50) for name in names][-len(shown) :]


def test_those_that_are_chosen_on_the_page_are_read_as_one(qtbot: Any, page: RunsPage, dock: LogDock) -> None:
    dock.set_open(True)
    page.run_view.scene.set_selection(["worker-0", "worker-2"])
    assert dock.replica.currentText() == "2 selected replicas"
    qtbot.waitUntil(lambda: names_shown(dock) == {"worker-0", "worker-2"})
    page.run_view.scene.set_selection(["worker-1"])
    assert dock.replica.currentText() == "worker-1"
    qtbot.waitUntil(lambda: names_shown(dock) == {"worker-1"})


def test_closed_only_one_log_is_read(qtbot: Any, dock: LogDock, run: Acting) -> None:
    dock.replica.setCurrentIndex(dock.replica.findData(ALL))
    qtbot.waitUntil(lambda: "step 49 of chief-0" in dock._last.text())
    asked = {params["replica"] for link in run.links.values() for method, params in link.asked if method == "logs.read"}
    assert asked == {"chief-0"}


def test_words_are_found_in_whichever_log_has_them_next(qtbot: Any, dock: LogDock) -> None:
    dock.set_open(True)
    choose(dock, "All")
    qtbot.waitUntil(lambda: len(names_shown(dock)) == 4)
    with qtbot.waitSignal(dock.view.search_ended) as ended:
        dock.search.setText("needle")
        dock.search.setFocus()
        QTest.keyClick(dock.search, Qt.Key.Key_F3, Qt.KeyboardModifier.ShiftModifier)
    assert ended.args == [True]
    assert "needle in worker-2" in dock.view.shown_lines
    for name in ("step 7 of worker-1", "step 7 of worker-0", "step 6 of worker-2"):
        with qtbot.waitSignal(dock.view.search_ended) as ended:
            dock.view.search(name, backwards=True)
        assert ended.args == [True], name
        assert name in dock.view.shown_lines
    with qtbot.waitSignal(dock.view.search_ended) as ended:
        dock.view.search("step 40 of chief-0", backwards=False)
    assert ended.args == [True]


def test_a_line_of_several_opens_its_log_alone(qtbot: Any, dock: LogDock) -> None:
    dock.set_open(True)
    choose(dock, "All")
    qtbot.waitUntil(lambda: len(names_shown(dock)) == 4)
    row = dock.view.shown_names.index("worker-1")
    height = dock.view.viewport().height() / len(dock.view.shown_names)
    QTest.mouseClick(dock.view.viewport(), LEFT, pos=QPoint(200, int((row + 0.5) * height)))
    QTest.keyClick(dock.view, Qt.Key.Key_C, Qt.KeyboardModifier.ControlModifier)
    name = QGuiApplication.clipboard().text().partition(":")[0]
    assert name in ("worker-1", "worker-0", "worker-2", "chief-0")
    QTest.keyClick(dock.view, Qt.Key.Key_Return)
    assert dock.replica.currentText() == name
    qtbot.waitUntil(lambda: names_shown(dock) == {name})


def test_a_replica_of_several_ranks_has_all_their_logs(qtbot: Any, home: Home, make_page: MakePage) -> None:
    run = Acting((host("gpu-a", 4),), "{name: w, role: worker, replicas: 2, gpus: 2}")
    run.logs = {"worker-0": b"first\n", "worker-0.1": b"Traceback of the second rank\n", "worker-1": b"other\n"}
    run.note(home)
    run.start()
    dock = make_page(run).run_view.log
    dock.show_replica("worker-0")
    qtbot.waitUntil(lambda: sorted(dock.view.shown_names) == ["worker-0.0", "worker-0.1"])
    assert sorted(dock.view.shown_lines) == ["Traceback of the second rank", "first"]


def test_more_logs_than_can_be_watched_are_said_to_be_left_out(
    qtbot: Any, dock: LogDock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_dock, "MOST_LOGS", 3)
    dock.set_open(True)
    choose(dock, "All")
    qtbot.waitUntil(lambda: dock._message.text() == "The first 3 of 4 logs")


def test_a_host_that_is_away_leaves_the_others_readable(qtbot: Any, dock: LogDock, run: Acting) -> None:
    run.down.add("gpu-b")
    run.links["gpu-b"].break_off()
    dock.set_open(True)
    choose(dock, "All")
    qtbot.waitUntil(lambda: names_shown(dock) == {"chief-0", "worker-0"})
    qtbot.waitUntil(lambda: "gpu-b" in dock._message.text())


def test_a_search_says_which_of_how_many_matches_it_shows(qtbot: Any, dock: LogDock, run: Acting) -> None:
    for name in ("worker-0", "worker-1"):
        run.logs[name] += b"A needle, and again a needle\nnothing\nneedle"  # The last line is not complete yet.
    dock.set_open(True)
    choose(dock, "All 4 replicas")
    qtbot.waitUntil(lambda: len(dock._feeds) == 4 and all(feed.size for feed in dock._feeds.values()))
    dock.view._go(TOP)
    dock.search.setText("NEEDLE")

    for said in (*(f"{number} of 5" for number in range(1, 6)), "No more matches (5 matches)"):
        dock.find_next()
        qtbot.waitUntil(lambda said=said: dock._message.text() == said)
    run.logs["worker-0"] += b" and its end\nanother needle\n"
    dock.view.set_following(True)
    qtbot.waitUntil(lambda: "another needle" in dock.view.shown_lines)
    dock.find_next()
    qtbot.waitUntil(lambda: dock._message.text() == "6 of 6")
    dock.search.setText("haystack")
    dock.find_next()
    qtbot.waitUntil(lambda: dock._message.text() == "No matches")


def test_a_count_ends_where_too_much_would_be_read(
    qtbot: Any, dock: LogDock, run: Acting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_search, "MOST_READ", 1000)
    monkeypatch.setattr(log_search, "PIECE", 500)
    run.logs["chief-0"] = b"some needle\n" * 200
    dock.set_open(True)
    qtbot.waitUntil(lambda: dock.view.shown_lines[-1:] == ["some needle"])
    dock.search.setText("needle")
    dock.find_previous()
    qtbot.waitUntil(lambda: dock.view.match_count is not None)
    assert dock.view.match_count == (83, False)

"""Tests of the table of replicas, grouped by pool or by host, with a summary for each group."""

from __future__ import annotations

from typing import Any

import pytest
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest

from tests.gui.runs.fake_hosts import Acting
from torchyard_gui.runs.page import RunsPage
from torchyard_gui.runs.replica_columns import LOSS, NAME, RATE, STATE
from torchyard_gui.runs.replica_table import ReplicaTable

LEFT = Qt.MouseButton.LeftButton
CHIEF, WORKERS = "chief (1 replica)", "workers (3 replicas)"


@pytest.fixture
def table(qtbot: Any, page: RunsPage, run: Acting) -> ReplicaTable:
    run.measure(10)
    tracks = page.feed.picture.tracks  # type: ignore[union-attr]  # The value is not None in this test.
    qtbot.waitUntil(lambda: all(len(track.ring) for track in tracks.values()))
    page.actions_.table.trigger()
    return page.run_view.table


def group(page: RunsPage, by: str) -> None:
    QTest.mouseClick(page.run_view.grouping.button(by), LEFT)


def names(table: ReplicaTable, column: int = NAME) -> list[str]:
    model = table.model()
    return [str(model.index(row, column).data()) for row in range(model.rowCount())]


def test_replicas_stand_below_the_heading_of_their_pool(page: RunsPage, table: ReplicaTable) -> None:
    group(page, "pool")
    assert names(table) == [CHIEF, "chief-0", WORKERS, "worker-0", "worker-1", "worker-2"]
    assert names(table, STATE)[2] == "3 running"
    tracks = page.feed.picture.tracks  # type: ignore[union-attr]  # The value is not None in this test.
    workers = sum(tracks[f"worker-{number}"].ring.last("throughput") for number in range(3))  # type: ignore[misc]  # Each trainer reports a throughput.
    assert names(table, RATE)[2] == f"{workers:,.0f}"
    # If the order is reversed, headings must stay above their replicas.
    table.sortByColumn(NAME, Qt.SortOrder.DescendingOrder)
    assert names(table) == [CHIEF, "chief-0", WORKERS, "worker-2", "worker-1", "worker-0"]
    table.sortByColumn(LOSS, Qt.SortOrder.DescendingOrder)
    assert [names(table)[row] for row in (0, 2)] == [CHIEF, WORKERS]
    group(page, "host")
    assert names(table)[0] == "gpu-a (2 replicas)"
    group(page, "")
    assert len(names(table)) == 4


def test_a_group_is_folded_and_selected_by_its_heading(qtbot: Any, page: RunsPage, table: ReplicaTable) -> None:
    group(page, "pool")
    table.setFocus()
    table.setCurrentIndex(table.model().index(2, 0))
    assert page.run_view.chosen == ["worker-0", "worker-1", "worker-2"]
    assert page.run_view.plots.names == ["worker-0", "worker-1", "worker-2"]
    QTest.keyClick(table, Qt.Key.Key_Left)
    assert names(table) == [CHIEF, "chief-0", WORKERS]
    page.run_view.search.setText("worker-1")  # The replica that matches the text is in a folded group.
    assert names(table) == [WORKERS, "worker-1"]
    page.run_view.search.clear()
    QTest.keyClick(table, Qt.Key.Key_Return)
    assert len(names(table)) == 6
    assert not page.run_view.log.is_open


def test_a_failure_is_first_in_the_summary(qtbot: Any, page: RunsPage, run: Acting, table: ReplicaTable) -> None:
    group(page, "pool")
    run.fail("worker-1", "exited with 1: ValueError: bad")
    qtbot.waitUntil(lambda: names(table, STATE)[2] == "1 failed, 2 stopped")

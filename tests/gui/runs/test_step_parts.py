"""What a step is made of is told for each replica, with its unit, and never as a zero where a strategy has none."""

from __future__ import annotations

from typing import Any

import pytest
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest

from tests.gui.runs.acting import Acting
from torchyard_gui.bridge.run_parts import Changes
from torchyard_gui.runs.page import RunsPage
from torchyard_gui.runs.replica_table import COMPUTE, DROPPED, EXCHANGE, NAME, STALE, WAIT
from torchyard_gui.runs.table_columns import GIVE_WAY, PAST, SKIPPED, STATE, WIDTHS, fitting_columns

LATE = {"exchange_s": 0.0123, "wait_s": 1.5, "staleness": 2.5, "dropped": 1204}


def measured(qtbot: Any, page: RunsPage, run: Acting, step: dict[str, float] | None) -> None:
    assert page.feed is not None
    for at in (10, 11):
        run.measure(at, step=step)
        page.feed._take_samples()  # each by itself: of samples that wait only the newest counts
    tracks = page.feed.picture.tracks.values()
    qtbot.waitUntil(lambda: all(len(track.ring) for track in tracks), timeout=30_000)


def shown(page: RunsPage) -> list[str]:
    table = page.run_view.table
    model = table.model()
    return [
        str(model.headerData(column, Qt.Orientation.Horizontal))
        for column in range(model.columnCount())
        if not table.isColumnHidden(column)
    ]


def cell(page: RunsPage, name: str, column: int) -> str:
    model = page.run_view.table.model()
    row = next(row for row in range(model.rowCount()) if model.index(row, NAME).data() == name)
    return str(model.index(row, column).data())


def test_the_table_has_a_column_for_each_part_that_is_told(qtbot: Any, page: RunsPage, run: Acting) -> None:
    page.actions_.table.trigger()
    page.window().resize(2000, 800)
    measured(qtbot, page, run, LATE)
    qtbot.waitUntil(lambda: "Staleness" in shown(page))
    assert {"Compute", "Exchange", "Waiting", "Staleness", "Dropped"} <= set(shown(page))
    assert "Skipped" not in shown(page), "nobody told any"
    row = [cell(page, "worker-1", column) for column in (COMPUTE, EXCHANGE, WAIT, STALE, DROPPED)]
    assert row == ["500 ms", "12 ms", "1.50 s", "2.5", "1,204"]
    tip = page.run_view.table.model().headerData(WAIT, Qt.Orientation.Horizontal, Qt.ItemDataRole.ToolTipRole)
    assert "waits for other replicas" in tip


def test_a_run_without_them_has_no_such_columns(qtbot: Any, page: RunsPage, run: Acting) -> None:
    page.actions_.table.trigger()
    page.window().resize(2000, 800)
    measured(qtbot, page, run, None)
    qtbot.waitUntil(lambda: "Compute" in shown(page))
    assert not {"Exchange", "Waiting", "Staleness", "Dropped", "Skipped"} & set(shown(page))
    assert cell(page, "worker-1", STALE) == "–"


@pytest.mark.parametrize("room", range(500, 1300, 90))
def test_columns_give_way_in_their_order_until_the_others_fit(room: int) -> None:
    told = {COMPUTE, EXCHANGE, WAIT, STALE, DROPPED}
    columns = fitting_columns(room, told)
    gone = set(WIDTHS) - set(columns) - {SKIPPED}
    assert {NAME, STATE, EXCHANGE, WAIT, STALE} <= set(columns)
    assert gone <= set(GIVE_WAY)
    assert sum(columns.values()) <= room or gone == set(GIVE_WAY) - {SKIPPED}
    assert room < 1180 or PAST in columns


def test_one_chosen_replica_has_its_step_beside_the_picture(qtbot: Any, page: RunsPage, run: Acting) -> None:
    measured(qtbot, page, run, LATE)
    panel = page.run_view.side.step
    assert panel.isHidden(), "a sum over replicas would mean nothing"
    page.run_view.choose(["worker-0"])
    assert not panel.isHidden()
    said = {field: value.text() for field, value in panel.values.items()}
    assert said["wait_s"] == "1.50 s"
    assert said["skipped"] == "–"
    page.run_view.choose(["worker-0", "worker-1"])
    assert panel.isHidden()


def test_a_chips_tool_tip_says_what_its_step_is_made_of(qtbot: Any, page: RunsPage, run: Acting) -> None:
    measured(qtbot, page, run, LATE)
    page.run_view._refresh()
    told = page.run_view.scene.described("worker-0")
    assert "exchange 12 ms, waiting 1.50 s, staleness 2.5, dropped 1,204" in told


def test_the_plots_can_be_of_the_step_instead(qtbot: Any, page: RunsPage, run: Acting) -> None:
    measured(qtbot, page, run, LATE)
    page.actions_.plots.trigger()
    plots = page.run_view.plots
    plots.set_names(["worker-0"])
    assert plots._plots["loss"].isVisible()
    assert not plots._plots["wait_s"].isVisible()
    QTest.mouseClick(plots.choice.button("step"), Qt.MouseButton.LeftButton)
    assert [kind for kind, plot in plots._plots.items() if plot.isVisible()] == [
        "compute_s", "exchange_s", "wait_s", "staleness",
    ]  # fmt: skip
    assert plots.curve("wait_s", "worker-0").yData[-1] == pytest.approx(1.5)


def test_the_journal_of_a_run_that_nobody_watched_tells_them_too(page: RunsPage, run: Acting) -> None:
    assert page.feed is not None
    picture = page.feed.picture
    picture._heard.clear()
    entry = {"epoch": "e2", "seq": 1, "time": 1_760_000_050.0, "event": "report", "replica": "worker-0", "step": 3}
    picture.take_event({**entry, **LATE}, Changes())
    assert picture.tracks["worker-0"].ring.last("staleness") == 2.5

"""Tests that the parts of a step are shown for each replica and server, with units.

Values that a strategy does not have are left out rather than shown as zeros.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest

from tests.core.advisor.samples import profile
from tests.core.examples import host
from tests.gui.runs.conftest import MakePage
from tests.gui.runs.fake_hosts import Acting
from torchyard_core.app.profile_script import profile_cache
from torchyard_core.home import Home
from torchyard_core.topology.model import Strategy, StrategyKind
from torchyard_gui.bridge.run_state_types import RunChanges
from torchyard_gui.runs.page import RunsPage
from torchyard_gui.runs.replica_columns import (
    CLIENTS,
    COMPUTE,
    DROPPED,
    EXCHANGE,
    GIVE_WAY,
    NAME,
    PAST,
    SKIPPED,
    STALE,
    STATE,
    TRAFFIC,
    VERSION,
    WAIT,
    WIDTHS,
    fitting_columns,
)

LATE = {"exchange_s": 0.0123, "wait_s": 1.5, "staleness": 2.5, "dropped": 1204}
SERVED = {"version": 1204, "clients": 4, "bytes_s": 12_340_000, "wait_s": 0.031, "staleness": 2, "dropped": 3}


@pytest.fixture
def run() -> Acting:
    """Returns a run with a parameter server."""
    trainers = (
        "{name: chief, role: chief, replicas: 1, gpus: 1}",
        "{name: workers, role: worker, replicas: 3, gpus: 1}",
    )
    return Acting((host("gpu-a", 2), host("gpu-b", 2)), *trainers, "{name: servers, role: ps, replicas: 1}")


def measured(
    qtbot: Any, page: RunsPage, run: Acting, step: dict[str, float] | None, served: dict[str, float] | None = None
) -> None:
    assert page.feed is not None
    for at in (10, 11):
        run.measure(at, step=step, served=served)
        page.feed._take_samples()  # Samples are taken one by one, because only the newest waiting sample is processed.
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
    page.window().resize(2300, 800)
    measured(qtbot, page, run, LATE, SERVED)
    qtbot.waitUntil(lambda: "Staleness" in shown(page))
    parts = {"Compute", "Exchange", "Waiting", "Staleness", "Dropped", "Version", "Trainers", "Traffic"}
    assert parts <= set(shown(page))
    assert "Skipped" not in shown(page), "no replica reported any"
    row = [cell(page, "worker-1", column) for column in (COMPUTE, EXCHANGE, WAIT, STALE, DROPPED)]
    assert row == ["500 ms", "12 ms", "1.50 s", "2.5", "1,204"]
    assert [cell(page, "worker-1", column) for column in (VERSION, CLIENTS, TRAFFIC)] == ["–", "–", "–"]
    row = [cell(page, "ps-0", column) for column in (COMPUTE, WAIT, STALE, DROPPED, VERSION, CLIENTS, TRAFFIC)]
    assert row == ["–", "31 ms", "2", "3", "1,204", "4", "12.3 MB/s"]
    tip = page.run_view.table.model().headerData(WAIT, Qt.Orientation.Horizontal, Qt.ItemDataRole.ToolTipRole)
    assert "waits for other replicas" in tip


def test_a_run_without_them_has_no_such_columns(qtbot: Any, page: RunsPage, run: Acting) -> None:
    page.actions_.table.trigger()
    page.window().resize(2300, 800)
    measured(qtbot, page, run, None)
    qtbot.waitUntil(lambda: "Compute" in shown(page))
    parts = {"Exchange", "Waiting", "Staleness", "Dropped", "Skipped", "Version", "Trainers", "Traffic"}
    assert not parts & set(shown(page))
    assert cell(page, "worker-1", STALE) == "–"


@pytest.mark.parametrize("room", range(500, 1300, 90))
def test_columns_give_way_in_their_order_until_the_others_fit(room: int) -> None:
    told = {COMPUTE, EXCHANGE, WAIT, STALE, DROPPED}
    columns = fitting_columns(room, told)
    untold = {SKIPPED, VERSION, CLIENTS, TRAFFIC}
    gone = set(WIDTHS) - set(columns) - untold
    assert {NAME, STATE, EXCHANGE, WAIT, STALE} <= set(columns)
    assert gone <= set(GIVE_WAY)
    assert sum(columns.values()) <= room or gone == set(GIVE_WAY) - untold
    assert room < 1180 or PAST in columns


def test_one_chosen_replica_has_its_step_beside_the_picture(qtbot: Any, page: RunsPage, run: Acting) -> None:
    measured(qtbot, page, run, LATE, SERVED)
    panel = page.run_view.side.step
    assert panel.isHidden(), "a sum over replicas would mean nothing"
    page.run_view.choose(["worker-0"])
    assert not panel.isHidden()
    said = {field: value.text() for field, value in panel.values.items()}
    assert said["wait_s"] == "1.50 s"
    assert said["skipped"] == "–"
    assert panel.heading.accessibleName() == "Step"
    assert panel.values["bytes_s"].isHidden(), "a trainer has none"
    page.run_view.choose(["ps-0"])
    assert panel.heading.accessibleName() == "Serving"
    seen = {field: value.text() for field, value in panel.values.items() if not value.isHidden()}
    assert seen == {
        "wait_s": "31 ms", "staleness": "2", "dropped": "3", "version": "1,204", "clients": "4", "bytes_s": "12.3 MB/s",
    }  # fmt: skip
    assert "last trainer" in panel.values["wait_s"].toolTip()
    plots = page.run_view.side.plots
    assert [name for name, plot in plots.items() if not plot.isHidden()] == ["traffic", "memory"]
    assert "12.3 MB/s" in plots["traffic"].accessibleName()
    page.run_view.choose(["worker-0", "worker-1"])
    assert panel.isHidden()


def test_the_step_of_a_trainer_has_its_prediction_beside_it(
    qtbot: Any, home: Home, run: Acting, make_page: MakePage, tmp_path: Path
) -> None:
    strategy = Strategy(kind=StrategyKind.SANDBLASTER)
    run.topology = run.topology.model_copy(update={"strategy": strategy})
    kind = run.facts[0].gpus[0].name
    profile_cache(home).keep(tmp_path, profile(kind=kind, is_gpu=True, compute_s=0.4))
    run.note(home, workdir=str(tmp_path))
    run.start()
    page = make_page(run)
    qtbot.waitUntil(lambda: page.feed is not None and page.feed.was_heard and run.is_followed)
    measured(qtbot, page, run, LATE, SERVED)
    assert page.feed is not None
    panel = page.run_view.side.step
    page.run_view.choose(["worker-0"])
    qtbot.waitUntil(lambda: not panel.predicted["compute_s"].isHidden())
    assert panel.predicted["compute_s"].text() == "predicted 400 ms"
    assert panel.values["compute_s"].text() == "500 ms"
    assert panel.predicted["exchange_s"].text().startswith("predicted ")
    assert "profile" in panel.predicted["compute_s"].toolTip()
    page.run_view.choose(["ps-0"])
    assert panel.predicted["compute_s"].isHidden(), "a server computes no step"
    page.run_view.choose(["worker-0"])
    # The remaining trainers continue as a smaller run, for which there was no prediction.
    run.play("replica_state", 20, replica="worker-2", host="gpu-b", state="lost", exit_code=None)
    qtbot.waitUntil(lambda: panel.predicted["compute_s"].isHidden())


def test_a_chips_tool_tip_says_what_its_step_is_made_of(qtbot: Any, page: RunsPage, run: Acting) -> None:
    measured(qtbot, page, run, LATE, SERVED)
    page.run_view._refresh()
    told = page.run_view.scene.described("worker-0")
    assert "exchange 12 ms, waiting 1.50 s, staleness 2.5, dropped 1,204" in told
    told = page.run_view.scene.described("ps-0")
    assert "version 1,204, trainers 4, traffic 12.3 MB/s" in told
    assert page.feed is not None
    assert page.feed.metric_of("ps-0") == "12.3 MB/s"


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


def test_the_journal_of_an_unwatched_run_shows_them_too(page: RunsPage, run: Acting) -> None:
    assert page.feed is not None
    picture = page.feed.picture
    picture._heard.clear()
    entry = {"epoch": "e2", "seq": 1, "time": 1_760_000_050.0, "event": "report", "replica": "worker-0", "step": 3}
    picture.take_event({**entry, **LATE}, RunChanges())
    assert picture.tracks["worker-0"].ring.last("staleness") == 2.5
    nothing = {"step": None, "loss": None, "throughput": None}
    picture.take_event({**entry, "seq": 2, "replica": "ps-0", **nothing, **SERVED}, RunChanges())
    assert picture.tracks["ps-0"].ring.last("version") == 1204

"""Tests of the Sweeps page with keys and the pointer: the live table, plots, stops, and topologies of trials."""

from __future__ import annotations

import hashlib
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PySide6.QtCore import QPoint, Qt
from PySide6.QtGui import QFontMetrics, QGuiApplication
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QLabel, QWidget
from pytestqt.qtbot import QtBot
from tools.sample_sweep import LIVE, sweep_data

from tests.gui.runs.fake_hosts import BEGAN, ActingFleet, close, runs_model
from tests.gui.sweeps.fake_sweep import STUDY_CONTENT, ActingSweep
from torchyard_core.app import team_studies
from torchyard_core.booking import store
from torchyard_core.booking.errors import StoreUnavailable
from torchyard_core.formatting import day_and_clock
from torchyard_core.home import Home
from torchyard_core.topology.file import topology_from_text
from torchyard_gui.bridge.sweeps_model import SweepsModel
from torchyard_gui.sweeps.history_plot import AXIS
from torchyard_gui.sweeps.page import NEW_SWEEP, SweepsPage
from torchyard_gui.sweeps.trial_plot import TrialPlot
from torchyard_gui.sweeps.trial_table import LONGEST_NAME, MARGIN, MARK_WIDTH, NUMBER, PARAMETERS, STATE, TRIAL, VALUE
from torchyard_gui.theme.theme import theme

CONTROL, SHIFT = Qt.KeyboardModifier.ControlModifier, Qt.KeyboardModifier.ShiftModifier
HOSTS = ["gpu-a", "gpu-b"]


def column(page: SweepsPage, number: int) -> list[str]:
    order = page.table.order
    return [str(order.index(row, number).data()) for row in range(order.rowCount())]


def click_on_trial(plot: TrialPlot, number: str, corner: int = 0) -> None:
    trial = next(each for each in plot.trials() if each.trial == number)
    QTest.mouseClick(plot, Qt.MouseButton.LeftButton, pos=plot.line_of(trial)[corner].toPoint())


def click_on_header(page: SweepsPage, section: int) -> None:
    header = page.table.horizontalHeader()
    place = QPoint(header.sectionViewportPosition(section) + 20, header.height() // 2)
    QTest.mouseClick(header.viewport(), Qt.MouseButton.LeftButton, pos=place)


def confirm(page: SweepsPage, qtbot: QtBot) -> str:
    """Confirms the displayed question; returns the question's text."""
    qtbot.waitUntil(lambda: page.dialog is not None and page.dialog.isVisible())
    assert page.dialog is not None
    texts = " ".join(each.text() for each in page.dialog.findChildren(QLabel))
    QTest.mouseClick(page.dialog.yes, Qt.MouseButton.LeftButton)
    return texts


def test_trials_of_every_state_are_listed_and_the_best_is_marked(page: SweepsPage) -> None:
    assert column(page, NUMBER)[:2] == ["38", "37"]
    states = dict(zip(column(page, NUMBER), column(page, STATE), strict=True))
    assert (states["38"], states["33"], states["32"], states["17"]) == ("running", "best", "pruned", "failed")
    reasons = dict(zip(column(page, NUMBER), column(page, page.table.trials.columnCount() - 1), strict=True))
    assert "CUDA out of memory" in reasons["17"]
    assert reasons["33"] == ""
    text = page.bar.state.text()
    assert text == "running · 36 of 50 trials · 3 failed · best: trial 33, loss 0.0681"
    assert page.status_texts() == [("running", "1 live sweep")]


def test_a_click_on_a_heading_sorts_and_unknown_values_are_last_in_either_order(page: SweepsPage) -> None:
    click_on_header(page, VALUE)
    rising = column(page, VALUE)
    assert rising[0] == "0.0681"
    click_on_header(page, VALUE)
    falling = column(page, VALUE)
    assert falling[0] == "0.3028"
    assert rising[-3:] == falling[-3:] == ["–"] * 3


def test_states_values_and_headings_are_not_cut(page: SweepsPage, acting: ActingSweep, qtbot: QtBot) -> None:
    assert acting.data is not None
    text = json.dumps(acting.data).replace('"lr"', '"initial_learning_rate"')
    acting.data = json.loads(text)
    assert acting.data is not None
    acting.data["trials"][-1]["state"] = "interrupted"
    QTest.keyClick(page.table, Qt.Key.Key_F5)
    qtbot.waitUntil(lambda: column(page, STATE)[0] == "interrupted")
    header = page.table.horizontalHeader()
    assert page.table.trials.headerData(PARAMETERS, Qt.Orientation.Horizontal) == "initial_learning_rate"
    page.table.setFixedWidth(1000)
    qtbot.waitUntil(lambda: header.sectionSize(PARAMETERS) > LONGEST_NAME)
    for section in range(header.count()):
        assert header.sectionSize(section) >= header.sectionSizeHint(section)
    page.table.setFixedWidth(560)
    qtbot.waitUntil(lambda: header.sectionSize(PARAMETERS) == LONGEST_NAME)
    cell = page.table.visualRect(page.table.order.index(0, STATE))
    width = cell.width() - MARK_WIDTH - 2 * MARGIN
    metrics = QFontMetrics(theme().font("body"))
    assert metrics.elidedText("interrupted", Qt.TextElideMode.ElideRight, width) == "interrupted"
    width = page.table.visualRect(page.table.order.index(0, VALUE)).width() - 2 * MARGIN
    bold, tiny = QFontMetrics(theme().font("strong")), QFontMetrics(theme().font("tiny"))
    for text in ("0.003869", "-0.0003869", "-1.235e+10"):
        assert bold.elidedText(text, Qt.TextElideMode.ElideRight, width) == text
        assert tiny.elidedText(text, Qt.TextElideMode.ElideRight, AXIS - 8) == text


def test_new_trials_appear_and_the_selection_stays(page: SweepsPage, acting: ActingSweep, qtbot: QtBot) -> None:
    page.choose("30")
    grown = sweep_data(LIVE, HOSTS, 42)
    for row in grown["trials"]:
        row["value"] = 0.01 if row["trial"] == "41" else row["value"]
        row["state"] = "complete" if row["trial"] == "41" else row["state"]
    acting.data = grown
    QTest.keyClick(page.table, Qt.Key.Key_F5)
    qtbot.waitUntil(lambda: page.table.trials.rowCount() == 42)
    assert page.table.trial is not None
    assert page.table.trial.trial == "30"
    assert "best: trial 41, loss 0.01" in page.bar.state.text()
    assert "loss 0.01" in page.list_model.best_of(page.model.sweeps[0])


def test_a_click_in_a_plot_selects_the_trial_everywhere(page: SweepsPage) -> None:
    click_on_trial(page.history, "17")
    assert page.table.trial is not None
    assert page.table.trial.trial == "17"
    page.along.setSizes([130, 600])
    row = page.table.visualRect(page.table.currentIndex())
    assert page.table.viewport().rect().contains(row.center()), "it stays visible"
    assert page.about.text().startswith("Trial 17 · failed · worker-1: ")
    assert "CUDA out of memory" in page.history.accessibleDescription()
    click_on_trial(page.parallel, "33", corner=-1)
    assert page.table.trial.trial == page.history.current == page.parallel.current == "33"
    assert "best so far" in page.about.text()


def test_keys_move_through_the_trials_of_a_plot(page: SweepsPage) -> None:
    page.history.setFocus()
    found = []
    for key in (Qt.Key.Key_Home, Qt.Key.Key_Right, Qt.Key.Key_Right, Qt.Key.Key_Left, Qt.Key.Key_End):
        QTest.keyClick(page.history, key)
        assert page.table.trial is not None
        found.append(page.table.trial.trial)
    assert found == ["1", "2", "3", "2", "38"]
    page.table.setFocus()
    QTest.keyClick(page.table, Qt.Key.Key_Down)
    assert page.history.current == "37"


def test_only_complete_trials_have_lines_and_the_best_has_the_strongest_colour(page: SweepsPage) -> None:
    trials = page.parallel.trials()
    assert {trial.state for trial in trials} == {"complete"}
    assert len(trials) == sum(row["state"] == "complete" for row in sweep_data(LIVE, HOSTS)["trials"])
    assert page.parallel.color_of(0) != page.parallel.color_of(len(trials) - 1)


def test_the_importance_is_that_of_optuna_and_its_absence_is_explained(
    page: SweepsPage, acting: ActingSweep, qtbot: QtBot
) -> None:
    assert page.importance.toolTip().splitlines() == ["lr: 64%", "depth: 21%", "dropout: 9%", "optimizer: 6%"]
    acting.data = {**sweep_data(LIVE, HOSTS), "importances": {}}
    QTest.keyClick(page.table, Qt.Key.Key_F5)
    qtbot.waitUntil(lambda: "from four complete trials" in page.importance.toolTip())
    assert page.importance.accessibleDescription() == page.importance.empty_text()


def test_stop_asks_first_and_stops_the_sweep(page: SweepsPage, acting: ActingSweep, qtbot: QtBot) -> None:
    QTest.keyClick(page.list, Qt.Key.Key_Period, CONTROL)
    qtbot.waitUntil(lambda: page.dialog is not None and page.dialog.isVisible())
    assert page.dialog is not None
    QTest.keyClick(page.dialog.focusWidget(), Qt.Key.Key_Return)
    qtbot.waitUntil(lambda: page.dialog is None)
    assert acting.stopped == [], "Enter keeps the sweep running"
    QTest.mouseClick(page.bar.buttons[page.actions_.stop], Qt.MouseButton.LeftButton)
    assert "2 running trials" in confirm(page, qtbot)
    qtbot.waitUntil(lambda: bool(acting.stopped))
    assert acting.stopped[0]["run_id"] == LIVE
    assert not acting.stopped[0]["force"]


def test_the_question_about_a_sweep_with_one_running_trial_is_in_the_singular(
    page: SweepsPage, acting: ActingSweep, qtbot: QtBot
) -> None:
    assert acting.data is not None
    running = [row for row in acting.data["trials"] if row["state"] == "running"]
    running[0]["state"] = "failed"
    QTest.keyClick(page.table, Qt.Key.Key_F5)
    qtbot.waitUntil(lambda: column(page, STATE).count("running") == 1)
    QTest.mouseClick(page.bar.buttons[page.actions_.stop], Qt.MouseButton.LeftButton)
    assert "1 running trial. It can be resumed: its parameters are tried again." in confirm(page, qtbot)


def test_one_trial_can_be_stopped(page: SweepsPage, acting: ActingSweep, qtbot: QtBot) -> None:
    page.choose("36")
    assert not page.actions_.stop_trial.isEnabled(), "it is complete"
    page.choose("38")
    page.actions_.stop_trial.trigger()
    assert "counts as failed" in confirm(page, qtbot)
    qtbot.waitUntil(lambda: bool(acting.stopped))
    assert acting.stopped[0]["run_id"] == f"{LIVE}.38"


class OnCluster(ActingSweep):
    """A sweep on a cluster, whose primary lists the runs of all trials. The trials name nodes."""

    def __init__(self) -> None:
        super().__init__(hosts=("hpc.1",))
        assert self.data is not None
        for trial in self.data["trials"]:
            trial["hosts"] = ["n3"]

    def _trial_lines(self, host: str) -> list[dict[str, Any]]:
        assert self.data is not None
        record = {"primary": "hpc.1", "hosts": ["hpc.1"], "sweep_run": self.run_id}
        running = [trial for trial in self.data["trials"] if trial["state"] == "running"]
        return [{**self._line(), "run_id": trial["run_id"], "state": "running", "record": record} for trial in running]


class TestOnCluster:
    """A sweep whose trials are jobs of a cluster."""

    @pytest.fixture
    def acting(self, home: Home, monkeypatch: pytest.MonkeyPatch) -> ActingSweep:
        sweep = OnCluster()
        sweep.note_sweep(home)
        sweep.start()
        monkeypatch.setattr(ActingFleet, "hosts", {}, raising=True)
        monkeypatch.setattr(ActingFleet, "listing", ("hpc.1",))
        monkeypatch.setattr(ActingFleet, "knows", lambda self, name: name == "hpc.1")
        return sweep

    def test_it_runs_as_soon_as_one_of_its_trials_does(
        self, page: SweepsPage, acting: ActingSweep, qtbot: QtBot
    ) -> None:
        acting.play("run_state", at=4.0, state="waiting", reason="job 7 waits in the queue")
        QTest.keyClick(page.table, Qt.Key.Key_F5)
        qtbot.waitUntil(lambda: page.model.runs.runs[0].state == "waiting")
        assert page.bar.state.text().startswith("running · ")
        acting.down = {"hpc.1"}
        QTest.keyClick(page.table, Qt.Key.Key_F5)
        qtbot.waitUntil(page.stale.isVisible)
        assert page.bar.state.text().startswith("waiting as of ")

    def test_one_trial_can_be_stopped(self, page: SweepsPage, acting: ActingSweep, qtbot: QtBot) -> None:
        page.choose("38")
        page.actions_.stop_trial.trigger()
        confirm(page, qtbot)
        qtbot.waitUntil(lambda: bool(acting.stopped) or page.notice.isVisible())
        assert not page.notice.isVisible(), page.notice.text
        assert acting.stopped[0]["run_id"] == f"{LIVE}.38"


def test_an_error_about_a_trial_goes_with_its_sweep_and_at_the_end_of_the_trial(
    page: SweepsPage, acting: ActingSweep, qtbot: QtBot
) -> None:
    def fail_to_stop() -> None:
        page.choose("38")
        page.actions_.stop_trial.trigger()
        confirm(page, qtbot)
        qtbot.waitUntil(page.notice.isVisible)

    acting.down = set(HOSTS)
    fail_to_stop()
    acting.down = set()
    page.actions_.stop_trial.trigger()
    confirm(page, qtbot)
    assert not page.notice.isVisible(), "a new attempt has begun"
    qtbot.waitUntil(lambda: bool(acting.stopped))

    acting.down = set(HOSTS)
    fail_to_stop()
    acting.down = set()
    acting.stop()
    QTest.keyClick(page.table, Qt.Key.Key_F5)
    qtbot.waitUntil(lambda: not page.notice.isVisible())

    other = replace(page.model.sweeps[0], run_id="20261119-101502-77aa")
    page.model.runs._take([*page.model.runs.runs, other])
    page._errors_of(other)(StoreUnavailable("it does not answer"))
    assert not page.notice.isVisible(), "the other sweep is not selected"
    page._errors_of(page.model.sweeps[0])(StoreUnavailable("it does not answer"))
    assert page.notice.isVisible()
    page.show_sweep(other.run_id)
    qtbot.waitUntil(lambda: not page.notice.isVisible())


@pytest.mark.parametrize("trial", ["", "17"])
def test_a_trial_opens_as_a_topology_with_its_parameters(page: SweepsPage, qtbot: QtBot, trial: str) -> None:
    opened: list[str] = []
    page.edit_copy.connect(opened.append)
    if trial:
        page.choose(trial)
        page.actions_.open_trial.trigger()
    else:
        QTest.keyClick(page.table, Qt.Key.Key_E, CONTROL | SHIFT)
    qtbot.waitUntil(lambda: bool(opened))
    topology = topology_from_text(opened[0], "best").topology
    assert topology is not None
    row = next(row for row in sweep_data(LIVE, HOSTS)["trials"] if row["trial"] == (trial or "33"))
    assert topology.program.args == (f"--lr={row['params']['lr']}", f"--depth={row['params']['depth']}")


def test_while_the_primary_does_not_answer_the_last_known_trials_are_shown(
    page: SweepsPage, acting: ActingSweep, qtbot: QtBot
) -> None:
    acting.down = set(HOSTS)
    QTest.keyClick(page.table, Qt.Key.Key_F5)
    qtbot.waitUntil(lambda: page.stale.isVisible())
    assert page.stale.text == "gpu-a does not answer on port 22. The last known trials are shown."
    assert page.table.trials.rowCount() == 38
    acting.down = set()
    QTest.keyClick(page.table, Qt.Key.Key_F5)
    qtbot.waitUntil(lambda: not page.stale.isVisible())


def test_a_sweep_that_ends_is_followed_to_its_end(page: SweepsPage, acting: ActingSweep, qtbot: QtBot) -> None:
    assert not page.actions_.resume.isEnabled()
    acting.stop()
    QTest.keyClick(page.table, Qt.Key.Key_F5)
    qtbot.waitUntil(lambda: page.bar.state.text().startswith("stopped"))
    qtbot.waitUntil(lambda: page.actions_.resume.isEnabled())
    assert not page.actions_.stop.isEnabled()
    qtbot.waitUntil(lambda: "interrupted" in column(page, STATE))
    assert page.status_texts() == []


def test_interrupted_trials_have_a_mark_of_their_own_in_the_legend(
    page: SweepsPage, acting: ActingSweep, qtbot: QtBot
) -> None:
    acting.stop()
    QTest.keyClick(page.table, Qt.Key.Key_F5)
    qtbot.waitUntil(lambda: "interrupted" in column(page, STATE))
    page.history.resize(900, 200)
    assert "interrupted" in [state for state, _, _ in page.history._legend()]


def test_a_continued_sweep_is_told_from_the_one_that_it_continues(page: SweepsPage) -> None:
    first = page.model.sweeps[0]
    second = replace(first, run_id=f"{first.run_id}-again", restarted_from=first.run_id)
    page.model.runs._take([second, first])
    assert page.list_model.continued(second) == f"continues {day_and_clock(BEGAN, time.time())}"
    assert page.list_model.continued(first) == ""
    heights = [page.list.sizeHintForIndex(page.list_model.index(row)).height() for row in range(2)]
    assert heights[0] > heights[1]


def test_the_arrow_of_a_heading_points_up_for_rising_values(page: SweepsPage) -> None:
    header = page.table.horizontalHeader()

    def spans(order: Qt.SortOrder) -> tuple[int, int]:
        """Returns the widths of the arrow at its top and at its bottom."""
        page.table.sortByColumn(PARAMETERS, order)
        image = header.grab().toImage()
        end = header.sectionViewportPosition(PARAMETERS) + header.sectionSize(PARAMETERS)
        ground = image.pixel(end - 2, 4)
        found = []
        for row in range(4, image.height() - 4):
            inked = [at for at in range(end - 20, end) if image.pixel(at, row) != ground]
            found += [inked[-1] - inked[0]] if inked else []
        return found[0], found[-1]

    top, bottom = spans(Qt.SortOrder.AscendingOrder)
    assert top < bottom
    assert spans(Qt.SortOrder.DescendingOrder) == (bottom, top)


def test_an_ended_sweep_stays_ended_while_its_primary_does_not_answer(
    page: SweepsPage, acting: ActingSweep, qtbot: QtBot
) -> None:
    acting.stop()
    QTest.keyClick(page.table, Qt.Key.Key_F5)
    qtbot.waitUntil(lambda: page.bar.state.text().startswith("stopped"))
    acting.down = set(HOSTS)
    qtbot.waitUntil(lambda: page.model.runs._refreshing is None)
    QTest.keyClick(page.table, Qt.Key.Key_F5)
    qtbot.waitUntil(lambda: set(page.model.runs.silent) == set(HOSTS))
    assert page.bar.state.text().startswith("stopped · ")
    assert not page.actions_.stop.isEnabled()
    assert page.status_texts() == []


def test_the_command_of_the_dashboard_is_copied_once_there_is_a_study(page: SweepsPage, home: Home) -> None:
    assert not page.actions_.dashboard.isEnabled()
    (home.sweeps / f"{LIVE}.sqlite3").write_bytes(b"")
    page.choose("33")
    QTest.keyClick(page.table, Qt.Key.Key_C, CONTROL | SHIFT)
    expected = f"optuna-dashboard sqlite:///{home.sweeps / LIVE}.sqlite3"
    assert QGuiApplication.clipboard().text() == expected


def test_without_sweeps_the_page_says_how_one_is_started(qtbot: QtBot, home: Home) -> None:
    runs = runs_model(home)
    page = SweepsPage(SweepsModel(runs, runs))
    qtbot.addWidget(page)
    page.resize(900, 600)
    page.show()
    assert page.empty.isVisible()
    assert NEW_SWEEP in page.empty.sentence.text()
    with qtbot.waitSignal(page.new_wanted):
        QTest.mouseClick(page.empty.buttons[0], Qt.MouseButton.LeftButton)
    QTest.mouseClick(page.empty.buttons[1], Qt.MouseButton.LeftButton)
    assert QApplication.clipboard().text() == NEW_SWEEP
    page.close_page()
    close(runs)


class TestWithoutTable:
    """A sweep whose coordinator has not written its table yet."""

    @pytest.fixture
    def acting(self, acting: ActingSweep) -> ActingSweep:
        acting.data = None
        return acting

    def test_it_says_so_and_shows_the_first_trials(self, page: SweepsPage, acting: ActingSweep, qtbot: QtBot) -> None:
        assert page.table.trials.rowCount() == 0
        assert page._nothing.text() == "No trial has begun yet."
        assert not page.actions_.best.isEnabled()
        acting.data = sweep_data(LIVE, HOSTS, 3)
        QTest.keyClick(page.table, Qt.Key.Key_F5)
        qtbot.waitUntil(lambda: page.table.trials.rowCount() == 3)


def test_f6_reaches_list_table_and_plots(page: SweepsPage) -> None:
    panes: list[QWidget] = page.panes()
    inside: list[Any] = [page.list, page.table, page.history]
    assert all(pane is widget or pane.isAncestorOf(widget) for pane, widget in zip(panes, inside, strict=True))
    assert page.table.order.index(0, 0).data(TRIAL).trial == "38"


def test_a_study_that_cannot_be_copied_to_the_team_is_told_once(
    page: SweepsPage, acting: ActingSweep, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch
) -> None:
    studies: list[str] = []

    def fail(url: str, file: Path, name: str) -> None:
        studies.append(name)
        raise StoreUnavailable("the bookings database team on db does not answer: no route to host")

    monkeypatch.setattr(store, "copy_study", fail)
    page.model.fleet_model.home.settings_file.write_text("bookings_url: postgresql+psycopg://kim@db/team\n")
    assert acting.data is not None
    acting.data["study"] = hashlib.sha256(STUDY_CONTENT).hexdigest()
    QTest.keyClick(page.table, Qt.Key.Key_F5)
    qtbot.waitUntil(lambda: page.not_shared.isVisible())
    assert page.not_shared.text == (
        "The study of digits-search was not copied to the team's database; the sweep is not affected. The bookings "
        "database team on db does not answer: no route to host."
    )
    assert page.not_shared.kind == "warn"
    page.not_shared.clear()
    monkeypatch.setattr(team_studies, "RETRY_S", 0.0)
    QTest.keyClick(page.table, Qt.Key.Key_F5)
    qtbot.waitUntil(lambda: len(studies) > 1 and not page.model._sharing)
    assert not page.not_shared.isVisible()
    page.model.not_shared.emit(LIVE, StoreUnavailable("it does not answer"))
    monkeypatch.setattr(store, "copy_study", lambda url, file, name: None)
    QTest.keyClick(page.table, Qt.Key.Key_F5)
    qtbot.waitUntil(lambda: not page.not_shared.isVisible())

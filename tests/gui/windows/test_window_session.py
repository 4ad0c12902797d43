"""Tests that a window restores the contents of the previous one, even after a kill, and reports what happened since."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest
from PySide6.QtWidgets import QWidget
from pytestqt.qtbot import QtBot

from tests.gui.runs.fake_hosts import Acting
from tests.gui.windows.conftest import wiring_of
from tests.gui.windows.test_app import file, opened, topology_page
from torchyard_core.errors import Unreachable
from torchyard_core.fleet.host_check import HostCheck, failed_check
from torchyard_core.fleet.inventory import Host
from torchyard_core.home import Home
from torchyard_core.launch.runs.known_runs import KnownRun
from torchyard_core.topology.host_facts import HostFacts
from torchyard_gui.bridge.host_status import HostStatus, now
from torchyard_gui.runs.page import RunsPage
from torchyard_gui.windows.absence_report import AbsenceReport
from torchyard_gui.windows.main_window import MainWindow
from torchyard_gui.windows.window_session import SessionState

__all__ = ["file"]  # Exports a fixture.


def _since() -> float:
    """Returns 18:42:30 of this day. A constant would be the previous day's if tests run past midnight."""
    return datetime.now().replace(hour=18, minute=42, second=30).timestamp()


def _before() -> SessionState:
    return SessionState("runs", None, seen_at=_since(), live_runs=("a", "b"), hosts=("gpu-a", "gpu-b", "gpu-c"))


def started(window: MainWindow) -> MainWindow:
    """Starts the session as the program does after its first paint."""
    wiring_of(window).session.start()
    return window


def killed(home: Home) -> Home:
    """Returns a copy of the home folder, in the state in which a killed window leaves it. The copy has no lock."""
    copy = Home(home.path.with_name("killed"))
    shutil.copytree(home.path, copy.path)
    (copy.path / "session.lock").unlink()
    return copy


def run(run_id: str, name: str, state: str, reason: str = "", *, is_fresh: bool = True) -> KnownRun:
    return KnownRun(run_id, name, state, reason, "", "gpu-a", ("gpu-a",), is_fresh=is_fresh, submitted="")


def test_file_and_page_are_open_again(qtbot: QtBot, home: Home, file: Path) -> None:
    first = started(opened(qtbot, home, file))
    first.show_page("fleet")
    first.close()

    second = opened(qtbot, home)
    assert second.current == "fleet"
    assert topology_page(second).document.path == file


def test_the_run_of_the_last_window_is_selected_again_and_its_end_reported(qtbot: QtBot, home: Home) -> None:
    home.path.mkdir(parents=True)
    old, new = Acting(name="old", run_id="20250101-a"), Acting(name="new", run_id="20250102-b")
    for each in (old, new):
        each.note(home, "succeeded")
    home.fleet_file.write_text("version: 1\nhosts: [{name: node-1}]\n")
    before = SessionState("runs", None, old.run_id, seen_at=_since(), live_runs=(old.run_id,), hosts=("node-1",))
    (home.path / "session.json").write_text(before.to_text())

    window = opened(qtbot, home)
    page = window.page("runs")
    assert isinstance(page, RunsPage)
    qtbot.waitUntil(lambda: page.feed is not None and page.feed.run.run_id == old.run_id)
    absence = wiring_of(window).absence
    assert absence is not None
    qtbot.waitUntil(absence.bar.isVisible)
    assert absence.bar.text == "Since 18:42: run old finished"
    lost, fleet = Unreachable("node-1", "node-1 does not answer on port 22."), wiring_of(window).fleet
    fleet._under_way["node-1"] = job = fleet.jobs.run(lambda: None)
    fleet._arrived("node-1", job, "checking", failed_check("node-1", lost.state, lost))
    assert absence.bar.text == "Since 18:42: run old finished, host node-1 was lost"
    page.show_run(new.run_id)
    window.show_page("fleet")
    absence.bar.buttons[0].click()
    assert window.current == "runs"
    qtbot.waitUntil(lambda: page.feed is not None and page.feed.run.run_id == old.run_id)


def test_a_killed_window_has_written_its_page_and_unsaved_work(qtbot: QtBot, home: Home, file: Path) -> None:
    first = started(opened(qtbot, home, file))
    page = topology_page(first)
    page.editor.set_name("renamed")
    page.autosave.write()
    first.show_page("fleet")
    session = home.path / "session.json"
    qtbot.waitUntil(lambda: session.exists() and '"fleet"' in session.read_text())

    second = opened(qtbot, killed(home))
    assert second.current == "fleet"
    again = topology_page(second)
    assert (again.document.path, again.document.value.name) == (file, "renamed")
    assert again.document.is_modified
    assert again.notice_bar.text.startswith("Unsaved changes from ")
    again.editor.stack.undo()
    assert again.document.value.name == "small"
    for window in (first, second):
        topology_page(window).document.start_new()


def test_unsaved_work_on_a_file_that_was_changed_since_is_only_offered(qtbot: QtBot, home: Home, file: Path) -> None:
    first = started(opened(qtbot, home, file))
    page = topology_page(first)
    page.editor.set_name("renamed")
    page.autosave.write()
    wiring_of(first).session.write()
    copy = killed(home)
    text = file.read_text().replace("small", "theirs")
    later = now().timestamp() + 10
    page.document.start_new()
    file.write_text(text)
    os.utime(file, (later, later))

    second = opened(qtbot, copy)
    again = topology_page(second)
    assert again.document.value.name == "theirs"
    assert "was kept when the program ended" in again.notice_bar.text


def test_a_second_window_neither_restores_nor_writes_the_session(qtbot: QtBot, home: Home, file: Path) -> None:
    first = started(opened(qtbot, home, file))
    first.show_page("runs")
    second = started(opened(qtbot, home))
    assert second.current == "topology"
    assert topology_page(second).document.path is None
    second.close()
    wiring_of(first).session.write()
    state = SessionState.from_text((home.path / "session.json").read_text())
    assert state is not None
    assert (state.page, state.file) == ("runs", file)


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"page": 1, "file": 3}', "\xff"])
def test_a_damaged_session_is_ignored(qtbot: QtBot, home: Home, text: str) -> None:
    home.path.mkdir(parents=True)
    (home.path / "session.json").write_text(text, encoding="latin-1")
    window = opened(qtbot, home)
    assert window.windowTitle() == "untitled[*] — Torchyard"
    assert window.current == "topology"


def test_a_file_that_is_gone_is_reported(qtbot: QtBot, home: Home, file: Path) -> None:
    started(opened(qtbot, home, file)).close()
    file.unlink()
    page = topology_page(opened(qtbot, home))
    assert page.document.path is None
    assert "small.yaml" in page.notice_bar.text


@pytest.fixture
def around(qtbot: QtBot) -> QWidget:
    """Returns a parent widget for the notice."""
    made = QWidget()
    qtbot.addWidget(made)
    return made


def report(around: QWidget, before: SessionState | None = None) -> AbsenceReport:
    made = AbsenceReport(before or _before(), around)
    made.bar.setParent(around)
    return made


def test_ends_and_losses_since_the_last_window_are_one_notice(qtbot: QtBot, around: QWidget) -> None:
    made = report(around)
    old = [run("a", "resnet", "running", is_fresh=False), run("b", "digits", "running", is_fresh=False)]
    made.take_runs(old)  # These states are from this computer's history.
    assert made.bar.isHidden()
    made.take_runs([run("a", "resnet", "succeeded"), run("b", "digits", "running")])
    assert made.bar.text == "Since 18:42: run resnet finished"
    # This run ended while the window was open.
    made.take_runs([run("a", "resnet", "succeeded"), run("b", "digits", "succeeded")])
    assert made.bar.text == "Since 18:42: run resnet finished"
    assert made.has_reported("a")
    assert not made.has_reported("b")
    for name in ("gpu-a", "gpu-b", "gpu-c", "gpu-d"):
        lost = failed_check(name, "unreachable", Unreachable(name, f"{name} does not answer on port 22."))
        host = HostStatus(Host(name=name), HostFacts(name))
        made.take_host(host)  # The host has not been checked yet.
        for _ in range(2):  # Both checks have the same result.
            made.take_host(host.checked(HostCheck(name, "ready") if name == "gpu-c" else lost, now()))
    assert made.bar.text == "Since 18:42: run resnet finished, 2 hosts were lost (gpu-a, gpu-b)"
    assert made.bar.kind == "warn"
    assert [button.text() for button in made.bar.buttons] == ["Show resnet", "Show the fleet"]
    with qtbot.waitSignal(made.run_wanted) as wanted:
        made.bar.buttons[0].click()
    assert wanted.args == ["a"]


def test_failures_come_first_and_many_runs_are_counted(around: QWidget) -> None:
    names = ("a", "b", "c", "d", "e")
    made = report(around, replace(_before(), live_runs=names))
    states = {"d": "failed", "b": "stopped"}
    made.take_runs([run(each, f"run-{each}", states.get(each, "succeeded"), "worker-1 was lost.") for each in names])
    assert made.bar.text == (
        "Since 18:42: run run-d failed (worker-1 was lost), run run-a finished, run run-b was stopped, "
        "2 more runs ended"
    )


def test_a_run_that_continues_is_not_reported(around: QWidget) -> None:
    made = report(around)
    made.take_runs([run("a", "resnet", "running"), run("b", "digits", "failed", is_fresh=False)])
    assert made.bar.text == "Since 18:42: run digits failed"

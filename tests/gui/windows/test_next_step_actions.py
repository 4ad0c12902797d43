"""Tests of next steps in the window: those that the window can perform have a button, and the others a sentence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
from PySide6.QtCore import QCoreApplication, QEvent, Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QFileDialog, QPushButton, QWidget
from pytestqt.qtbot import QtBot
from tools.sample_fleet import FAILED_RUN

from tests.core.test_next_steps import KINDS, example
from tests.gui.windows.conftest import wiring_of
from torchyard_core import next_steps as steps
from torchyard_core.errors import TorchyardError
from torchyard_core.launch.checks.check import Check
from torchyard_core.next_steps import NextStep
from torchyard_core.problems import Problem
from torchyard_gui.bookings.dialogs.booking_dialog import BookingDialog
from torchyard_gui.bookings.dialogs.rules_dialog import RulesDialog
from torchyard_gui.bookings.dialogs.team_calendar_dialog import TeamCalendarDialog
from torchyard_gui.bookings.page import BookingsPage
from torchyard_gui.fleet.dialogs.add_host_dialog import AddHostDialog
from torchyard_gui.fleet.dialogs.edit_hosts_dialog import EditHostsDialog
from torchyard_gui.fleet.dialogs.removal_dialogs import RemoveHostsDialog
from torchyard_gui.fleet.page import FleetPage
from torchyard_gui.launch.checklist_model import Row
from torchyard_gui.launch.checklist_row import ChecklistRow
from torchyard_gui.runs.page import RunsPage
from torchyard_gui.topology.page import TopologyPage
from torchyard_gui.widgets.next_steps import TEXTS, advice_text, as_sentence, button_text, quoted, step_text
from torchyard_gui.windows.main_window import MainWindow
from torchyard_gui.windows.next_step_actions import NextStepActions


def topology(window: MainWindow) -> TopologyPage:
    return cast("TopologyPage", window.page("topology"))


def fleet(window: MainWindow) -> FleetPage:
    return cast("FleetPage", window.page("fleet"))


def runs(window: MainWindow) -> RunsPage:
    return cast("RunsPage", window.page("runs"))


def bookings(window: MainWindow) -> BookingsPage:
    return cast("BookingsPage", window.page("bookings"))


def press(window: MainWindow, step: NextStep, key: Qt.Key | None = None) -> None:
    """Presses the button for a next step of an error on the current page, with the mouse or the keyboard."""
    notice = {"topology": topology(window).notice_bar, "fleet": fleet(window).notice}[window.current]
    notice.show_error(TorchyardError("it broke", hint=("First this.", step)))
    assert notice.text == "it broke. First this."
    (button,) = notice.buttons
    assert button.text() == button_text(step)
    if key is None:
        QTest.mouseClick(button, Qt.MouseButton.LeftButton)
    else:
        button.setFocus()
        QTest.keyClick(button, key)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_each_step_has_a_button_or_a_sentence(kind: type[NextStep]) -> None:
    step = example(kind)
    assert kind in TEXTS
    assert "torchyard " not in step_text(step) + button_text(step)
    assert step_text(step).endswith(".")
    assert (advice_text(("First this.", step), has_buttons=True) == "First this.") == bool(button_text(step))


def test_the_window_can_do_each_step_that_has_a_button(window: MainWindow) -> None:
    wiring = wiring_of(window)
    actions = NextStepActions(window, wiring.fleet, wiring.planning, wiring.place).actions
    assert set(actions) == {kind for kind in KINDS if button_text(example(kind))}


def test_core_sentences_become_the_windows() -> None:
    assert as_sentence("the disk of gpu-a is full", "Make room.") == "The disk of gpu-a is full. Make room."
    assert as_sentence("gpu-a refused the login.") == "gpu-a refused the login."
    assert as_sentence("the did not answer.", host="the") == "the did not answer."
    assert as_sentence("no run is known", steps.ListRuns()) == "No run is known. The Runs page shows all runs."
    assert quoted("set `agent_dir` or `env`, not `x") == "set “agent_dir” or “env”, not `x"


def shows(page: str) -> Callable[[MainWindow], bool]:
    return lambda window: window.current == page


def has_dialog(page: Callable[[MainWindow], Any], kind: type[QWidget]) -> Callable[[MainWindow], bool]:
    return lambda window: isinstance(page(window).dialog, kind) and page(window).dialog.isVisible()


def has_field_focus(window: MainWindow) -> bool:
    focus = QApplication.focusWidget()
    return shows("topology")(window) and focus is not None and topology(window).inspector.isAncestorOf(focus)


DONE: list[tuple[NextStep, Callable[[MainWindow], bool]]] = [
    (steps.RemoveHost("gpu-a"), has_dialog(fleet, RemoveHostsDialog)),
    (
        steps.AddHost("gpu-z"),
        lambda window: (
            has_dialog(fleet, AddHostDialog)(window)
            and cast("AddHostDialog", fleet(window).dialog).fields["name"].text() == "gpu-z"
        ),
    ),
    (
        steps.SetHostField("gpu-b", "python"),
        lambda window: (
            has_dialog(fleet, EditHostsDialog)(window)
            and (dialog := cast("EditHostsDialog", fleet(window).dialog)).fields["python"].hasFocus()
            and dialog.fields["name"].text() == "gpu-b"
        ),
    ),
    (steps.ShowHosts(), shows("fleet")),
    (steps.LaunchTopology(), shows("topology")),
    (steps.SendSecrets("r-1", ("--secret", "KEY")), shows("topology")),
    (
        steps.LaunchAt(("a.yaml",), "2096-01-08 12:00", "6h"),
        lambda window: shows("topology")(window) and wiring_of(window).planning.planned.length_words == "6h",
    ),
    (steps.LaunchWithBooking(("a.yaml",), "8h"), lambda window: topology(window).bar.when.popup.isVisible()),
    (steps.ValidateTopology("a.yaml"), lambda window: topology(window).problems.is_open),
    (steps.ProfileScript("a.yaml"), lambda window: topology(window).advice.isVisible()),
    (
        steps.ImportDocument("vertex", "job.yaml"),
        lambda window: any(dialog.isVisible() for dialog in window.findChildren(QFileDialog)),
    ),
    (steps.SetField("program.exclude"), has_field_focus),
    (steps.ListRuns(), shows("runs")),
    (steps.ShowSweep("s-1"), shows("sweeps")),
    (steps.ResumeSweep("s-1"), shows("sweeps")),
    (steps.WriteTrial("s-1"), shows("sweeps")),
    (
        steps.ShowLogs(FAILED_RUN),
        lambda window: (
            shows("runs")(window)
            and (feed := runs(window).feed) is not None
            and feed.run.run_id == FAILED_RUN
            and runs(window).run_view.log.is_open
        ),
    ),
    (
        steps.BookGpus("gpu-a:0-1,gpu-b:2", "8h"),
        lambda window: (
            has_dialog(bookings, BookingDialog)(window)
            and cast("BookingDialog", bookings(window).dialog).gpus.text() == "gpu-a:0-1,gpu-b:2"
        ),
    ),
    (steps.ChangeBooking("none"), shows("bookings")),
    (steps.ListBookings(), shows("bookings")),
    (steps.ShowRules(), has_dialog(bookings, RulesDialog)),
    (steps.SetUpTeam(), has_dialog(bookings, TeamCalendarDialog)),
    (
        steps.JoinWaitlist("1", "4h"),
        lambda window: bookings(window).drawers.current is bookings(window).waitlist,
    ),
]


@pytest.mark.parametrize(("step", "is_done"), DONE, ids=lambda one: type(one).__name__)
def test_the_button_does_the_step(
    window: MainWindow, qtbot: QtBot, step: NextStep, is_done: Callable[[MainWindow], bool]
) -> None:
    window.show_page("topology" if window.current == "fleet" or not shows("topology")(window) else "fleet")
    press(window, step, Qt.Key.Key_Space if DONE.index((step, is_done)) % 2 else None)
    qtbot.waitUntil(lambda: is_done(window))
    for dialog in (fleet(window).dialog, bookings(window).dialog, *window.findChildren(QFileDialog)):
        if dialog is not None:
            dialog.close()
    if "popup" in topology(window).bar.when.__dict__:
        topology(window).bar.when.popup.hide()


def test_steps_about_hosts(window: MainWindow, monkeypatch: pytest.MonkeyPatch) -> None:
    model, done = wiring_of(window).fleet, []
    monkeypatch.setattr(model, "deploy", lambda hosts: done.append(("deploy", hosts)))
    monkeypatch.setattr(model, "check", lambda hosts=None: done.append(("check", hosts)))
    monkeypatch.setattr(fleet(window), "trust", lambda host: done.append(("trust", host)))
    model.has_looked = True
    for step in (steps.DeployAgent("gpu-b"), steps.CheckHosts(("gpu-c",)), steps.CheckHosts(), steps.TrustKey("gpu-d")):
        window.show_page("topology")
        press(window, step)
    assert done == [("deploy", ["gpu-b"]), ("check", ["gpu-c"]), ("check", None), ("trust", "gpu-d")]
    assert fleet(window).list.chosen == ["gpu-c"]


def test_steps_that_stop_a_run(window: MainWindow, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    page = runs(window)
    monkeypatch.setattr(page, "ask_to_stop", lambda: asked.append(page.feed.run.run_id if page.feed else ""))
    for step in (steps.StopRun(FAILED_RUN), steps.StopRun(FAILED_RUN, ("--force",)), steps.StopRun("unknown")):
        window.show_page("topology")
        press(window, step)
        assert window.current == "runs"
    assert asked == [FAILED_RUN, FAILED_RUN]


def test_the_problems_of_a_topology_have_buttons(window: MainWindow, qtbot: QtBot) -> None:
    page = topology(window)
    window.show_page("topology")
    page.problems.show_problems(
        [Problem("warning", "unchecked-host", "gpu-a is not known", next_step=steps.ShowHosts())] * 2
    )
    (button,) = page.problems.line.steps.findChildren(QPushButton)
    button.setFocus()
    QTest.keyClick(button, Qt.Key.Key_Space)
    assert window.current == "fleet"


def test_a_row_of_the_checklist_has_the_buttons_of_its_checks(window: MainWindow) -> None:
    row = Row("host")
    row.failed.append(Check("host", "gpu-a", False, "no agent", steps.ShowHosts(), code="agent_missing"))
    row.failed.append(Check("host", "gpu-b", False, "who?", steps.TrustKey("gpu-b"), code="key_unknown"))
    shown = ChecklistRow(row, window)
    assert shown.texts == ["gpu-a: no agent.", "gpu-b: who?"]
    shown.steps.show_steps([steps.ListRuns(), steps.AnswerYes()])
    shown.refresh()
    QCoreApplication.sendPostedEvents(None, QEvent.Type.DeferredDelete.value)
    (button,) = shown.steps.findChildren(QPushButton)
    window.show_page("topology")
    button.click()
    assert window.current == "fleet"
    shown.deleteLater()

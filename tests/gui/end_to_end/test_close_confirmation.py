"""Tests of closing the window during a launch: the window asks for confirmation, cancels the launch, and closes.
Nothing is left on a host.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest

from tests.core.cli.sample_runs import sleeping
from tests.end_to_end.running import programs_on
from tests.gui.end_to_end.conftest import OpenWindow
from tests.gui.end_to_end.simulated_user import LAUNCHED_WITHIN_MS, SimulatedUser
from tests.gui.job_threads import job_threads
from tests.gui.topology.page_driver import CONTROL
from tests.lab import Desktop, Lab
from tests.waiting import wait_until
from torchyard_core.fleet.daemon_client import DaemonClient
from torchyard_gui.bridge.launch_job import LaunchJob
from torchyard_gui.widgets.dialogs import ConfirmationDialog

pytestmark = pytest.mark.lab


def question(person: SimulatedUser) -> ConfirmationDialog | None:
    """Returns the window's confirmation dialog if it is visible, otherwise None."""
    return next((box for box in person.window.findChildren(ConfirmationDialog) if box.isVisible()), None)


def answer(person: SimulatedUser, words: str) -> None:
    box = question(person)
    assert box is not None
    person.press(person.button(box, words))


def at_step(job: LaunchJob | None, step: str, act: Callable[[], None]) -> list[str]:
    """Calls `act` when the launch first reaches a step. From then on, the returned list contains the step's name."""
    done: list[str] = []
    assert job is not None

    def progressed(name: str, so_far: int, total: int) -> None:
        if name == step and not done:
            done.append(name)
            act()

    job.progressed.connect(progressed)
    return done


def left_on(lab: Lab) -> list[str]:
    """Returns the keepers, ranks and run folders that are left on lab hosts."""
    folders = [str(path) for host in lab.hosts for path in host.home.glob(".torchyard/hosts/*/runs/*")]
    return programs_on(lab) + folders


def long_run(folder: Path) -> Path:
    """Writes a topology with three sleeping workers, and a file that the launch must upload."""
    file = sleeping(folder)
    (file.parent / "data.bin").write_bytes(bytes(range(256)) * 4096)
    return file


@pytest.mark.parametrize("step", ["reaching", "sending", "preparing", "starting"])
def test_a_window_closed_while_it_launches_leaves_nothing_half_done(
    window_of: OpenWindow, desktop: Desktop, lab3: Lab, tmp_path: Path, step: str
) -> None:
    person = window_of(desktop, long_run(tmp_path / "long"))
    closed: list[bool] = []
    person.window.closed.connect(lambda: closed.append(True))
    panel = person.press_launch()

    def close() -> None:
        person.window.close()  # The window's close button calls the same method.
        assert not closed
        answer(person, "Cancel the launch and close")

    asked = at_step(panel.job, step, close)
    person.wait_until(lambda: closed, LAUNCHED_WITHIN_MS)

    assert asked == [step]
    assert not panel.is_launching
    assert not panel.isVisible()
    assert not person.window.isVisible()
    # The keepers may still be exiting.
    wait_until(lambda: not left_on(lab3))
    assert person.runs.model.history.records() == []


def test_a_run_that_started_before_the_answer_is_cancelled_too(
    window_of: OpenWindow, desktop: Desktop, lab3: Lab, tmp_path: Path
) -> None:
    person = window_of(desktop, long_run(tmp_path / "long"))
    person.hosts_were_asked()
    closed: list[bool] = []
    person.window.closed.connect(lambda: closed.append(True))
    panel = person.press_launch()
    # The run starts while the window's event loop is blocked.
    wait_until(lambda: sum("talk.py" in line for line in programs_on(lab3)) >= 3)
    wait_until(lambda: not job_threads("LaunchJob._run"))
    assert panel.is_launching
    person.window.close()
    answer(person, "Cancel the launch and close")
    person.wait_until(lambda: closed, LAUNCHED_WITHIN_MS)
    wait_until(lambda: not left_on(lab3))
    assert person.runs.model.history.records() == []


def test_a_launch_continues_if_the_user_keeps_it(
    window_of: OpenWindow, desktop: Desktop, lab3: Lab, tmp_path: Path
) -> None:
    person = window_of(desktop, long_run(tmp_path / "long"))
    panel = person.press_launch()

    def close_twice() -> None:
        person.window.close()
        person.window.close()
        # The question must be answered at once, because it disappears when the launch ends.
        answer(person, "Keep launching")
        assert question(person) is None

    asked = at_step(panel.job, "sending", close_twice)
    person.wait_until(lambda: asked, LAUNCHED_WITHIN_MS)
    person.on_the_runs_page()
    person.wait_until(lambda: person.picture.state == "running")
    assert person.window.isVisible()
    person.stop_the_run()
    person.wait_until(lambda: person.picture.is_over)
    wait_until(lambda: not programs_on(lab3))


def test_an_unanswered_question_disappears_when_the_run_has_started(
    window_of: OpenWindow, desktop: Desktop, lab3: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    call, is_asked = DaemonClient.call, threading.Event()

    def held(link: DaemonClient, method: str, params: dict[str, Any] | None = None, timeout_s: float = 60.0) -> Any:
        if method == "run.start":
            is_asked.wait(60)
        return call(link, method, params, timeout_s)

    monkeypatch.setattr(DaemonClient, "call", held)
    person = window_of(desktop, long_run(tmp_path / "long"))
    person.press_launch()
    person.window.activateWindow()
    person.wait_until(person.window.isActiveWindow)
    QTest.keyClick(person.window, Qt.Key.Key_Q, CONTROL)
    assert question(person) is not None
    is_asked.set()

    person.on_the_runs_page()
    assert question(person) is None
    assert person.window.isVisible()
    # The run has started, so closing the window neither asks a question nor affects the run.
    person.wait_until(lambda: person.picture.state == "running")
    assert person.window.close()
    assert sum("sleep" in line or "python" in line for line in programs_on(lab3)) >= 3

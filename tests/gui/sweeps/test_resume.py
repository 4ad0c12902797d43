"""Tests of resuming a stopped sweep on the Sweeps page: changed files, and refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import pytest
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest
from pytestqt.qtbot import QtBot
from tools.sample_sweep import LIVE

from tests.gui.sweeps.fake_sweep import ActingSweep
from torchyard_core.app import resume_sweep as use_case
from torchyard_core.app.desktop import Desktop
from torchyard_core.errors import RunFailed, TorchyardError
from torchyard_core.launch.launch import StartedRun
from torchyard_core.launch.progress import Cancelled
from torchyard_core.launch.runs.known_runs import KnownRun
from torchyard_gui.sweeps.page import SweepsPage

CONTROL, SHIFT = Qt.KeyboardModifier.ControlModifier, Qt.KeyboardModifier.ShiftModifier


class FakeLaunch:
    """A simulated resumption. Each call of `run` takes the next entry of `outcomes`."""

    outcomes: ClassVar[list[Callable[[], StartedRun]]] = []
    new_code: ClassVar[list[bool]] = []

    def run(self) -> StartedRun:
        return FakeLaunch.outcomes.pop(0)()

    def cancel(self) -> None:
        pass


def fails(error: Exception) -> Callable[[], StartedRun]:
    def run() -> StartedRun:
        raise error

    return run


@pytest.fixture
def ended(page: SweepsPage, acting: ActingSweep, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch) -> SweepsPage:
    """Returns the page with a stopped sweep, whose resumption is simulated."""

    def resume(
        desktop: Desktop, run: KnownRun, error: TorchyardError | None, callbacks: object, *, new_code: bool
    ) -> FakeLaunch:
        assert (run.run_id, error) == (LIVE, None)
        FakeLaunch.new_code.append(new_code)
        return FakeLaunch()

    monkeypatch.setattr(use_case, "resume_sweep", resume)
    monkeypatch.setattr(FakeLaunch, "new_code", [])
    acting.stop()
    QTest.keyClick(page.table, Qt.Key.Key_F5)
    qtbot.waitUntil(page.actions_.resume.isEnabled)
    return page


def test_changed_files_are_accepted_by_a_button(
    ended: SweepsPage, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed = RunFailed(
        "the files of the working folder /work have changed since the sweep began.", code="code_changed"
    )
    monkeypatch.setattr(FakeLaunch, "outcomes", [fails(changed), fails(Cancelled())])
    QTest.keyClick(ended.table, Qt.Key.Key_R, CONTROL | SHIFT)
    qtbot.waitUntil(lambda: ended.notice.kind == "fail")
    assert ended.notice.text.startswith("The files of the working folder /work have changed since the sweep began.")
    assert "--new-code" not in ended.notice.text
    QTest.mouseClick(ended.notice.buttons[0], Qt.MouseButton.LeftButton)
    qtbot.waitUntil(lambda: ended.notice.text == "Cancelled; nothing is left on the hosts")
    assert FakeLaunch.new_code == [False, True]
    assert ended.actions_.resume.isEnabled()


def test_a_refusal_is_shown(ended: SweepsPage, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeLaunch, "outcomes", [fails(RunFailed("gpu-a has no Optuna.", code="no_optuna"))])
    QTest.mouseClick(ended.bar.buttons[ended.actions_.resume], Qt.MouseButton.LeftButton)
    qtbot.waitUntil(lambda: ended.notice.kind == "fail")
    assert ended.notice.text == "gpu-a has no Optuna."
    assert not ended.resuming.is_launching


def test_the_hosts_are_asked_for_a_resumed_sweep_at_once(
    ended: SweepsPage, acting: ActingSweep, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch
) -> None:
    link: Any = acting.links["gpu-a"]
    monkeypatch.setattr(FakeLaunch, "outcomes", [lambda: StartedRun(LIVE, acting.plan, link, {}, {})])
    ended._refresh_timer.stop()
    qtbot.waitUntil(lambda: ended.model.runs._refreshing is None)
    before = count_of(link, "run.list")
    QTest.mouseClick(ended.bar.buttons[ended.actions_.resume], Qt.MouseButton.LeftButton)
    qtbot.waitUntil(lambda: count_of(link, "run.list") > before)
    qtbot.waitUntil(lambda: ended.model.runs._refreshing is None)


def count_of(link: Any, method: str) -> int:
    return sum(asked == method for asked, _ in link.asked)

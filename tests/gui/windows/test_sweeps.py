"""Tests of the Sweeps page within the window: how it is reached, and that trials open in the editor."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import ClassVar, cast

import pytest
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest
from pytestqt.qtbot import QtBot
from tools.sample_sweep import LIVE, note_sweeps, show_sample_sweeps

from tests import REPOSITORY
from tests.gui.windows.conftest import wiring_of
from torchyard_core.app import launch_sweep
from torchyard_core.app.desktop import Desktop
from torchyard_core.errors import RunFailed
from torchyard_core.sweeps.search_file import SearchFile
from torchyard_core.topology.file import TopologyFile
from torchyard_gui.sweeps.page import SweepsPage
from torchyard_gui.topology.page import TopologyPage
from torchyard_gui.widgets.dialogs import ConfirmationDialog
from torchyard_gui.windows.main_window import MainWindow

CONTROL, SHIFT = Qt.KeyboardModifier.ControlModifier, Qt.KeyboardModifier.ShiftModifier


def test_the_best_trial_opens_in_the_editor_as_an_unsaved_topology(window: MainWindow, qtbot: QtBot) -> None:
    page = cast("SweepsPage", window.page("sweeps"))
    note_sweeps(page.model.runs, ["gpu-a", "gpu-b"])
    show_sample_sweeps(page, ["gpu-a", "gpu-b"])
    QTest.keyClick(window, Qt.Key.Key_5, CONTROL)
    assert window.current == "sweeps"
    assert page.run_id == LIVE
    QTest.keyClick(page.list, Qt.Key.Key_E, CONTROL | SHIFT)
    qtbot.waitUntil(lambda: window.current == "topology")
    document = wiring_of(window).document
    best = page.model.table(LIVE)
    assert best is not None
    assert best.best is not None
    assert document.value.program.args[0] == f"--lr={best.best.params['lr']}"
    assert document.path is None
    assert window.isWindowModified()


def test_the_form_follows_the_open_topology_and_its_changes_are_asked_about_when_the_window_closes(
    window: MainWindow, qtbot: QtBot
) -> None:
    wiring = wiring_of(window)
    document = wiring.document
    window.show_page("sweeps")
    page = cast("SweepsPage", window.page("sweeps"))
    QTest.keyClick(page, Qt.Key.Key_N, CONTROL)
    dialog = wiring.search_dialog
    qtbot.waitUntil(dialog.isActiveWindow)
    assert dialog.form.name.placeholderText() == document.value.name
    before = document.value.program.args
    QTest.mouseClick(dialog.fix_arguments, Qt.MouseButton.LeftButton)
    assert document.value.program.args == (*before, "--lr={params.lr}")
    assert dialog.count.text() == ""
    topology = cast("TopologyPage", window.page("topology"))
    topology.editor.undo()
    assert document.value.program.args == before
    assert dialog.count.text() == "1 problem"

    QTest.keyClicks(dialog.form.name, "mine")
    window.close()
    boxes = [box for box in dialog.findChildren(ConfirmationDialog) if box.isVisible()]
    assert len(boxes) == 1
    assert window.isVisible()
    QTest.mouseClick(boxes[0].yes, Qt.MouseButton.LeftButton)
    qtbot.waitUntil(lambda: not window.isVisible())


class FakeLaunch:
    """The launch of a sweep. It fails until `error` is None."""

    error: ClassVar[RunFailed | None] = None
    searches: ClassVar[list[str]] = []

    def __init__(self, desktop: Desktop, source: TopologyFile, search: SearchFile, *_: object, **__: object) -> None:
        FakeLaunch.searches.append(search.document.text)

    def run(self) -> SimpleNamespace:
        if FakeLaunch.error is not None:
            raise FakeLaunch.error
        return SimpleNamespace(run_id="20261128-031502-8c1d")

    def cancel(self) -> None:
        pass


def test_the_panel_says_why_a_sweep_did_not_start_and_the_form_stays_until_it_has_started(
    window: MainWindow, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch_sweep, "LaunchSweep", FakeLaunch)
    monkeypatch.setattr(FakeLaunch, "error", RunFailed("gpu-a has no Optuna.", code="no_optuna"))
    monkeypatch.setattr(FakeLaunch, "searches", [])
    wiring = wiring_of(window)
    cast("TopologyPage", window.page("topology")).add_arguments(["--lr={params.lr}"])
    monkeypatch.setattr(wiring.fleet, "check", lambda: None)
    wiring.new_sweep()
    dialog, panel = wiring.search_dialog, wiring.launch_panel
    qtbot.waitUntil(dialog.isActiveWindow)
    QTest.keyClick(dialog.form.name, Qt.Key.Key_Return, CONTROL)
    qtbot.waitUntil(panel.again.isVisible)
    name = wiring.document.value.name
    assert panel.windowTitle() == f"Launch {name}"
    assert "gpu-a has no Optuna." in " ".join(text for row in panel._rows.values() for text in row.texts)
    assert dialog.isVisible()
    FakeLaunch.error = None
    QTest.mouseClick(panel.again, Qt.MouseButton.LeftButton)
    qtbot.waitUntil(lambda: window.current == "sweeps")
    assert not panel.isVisible()
    assert not dialog.isVisible()
    assert FakeLaunch.searches == [dialog.preview.text] * 2
    page = cast("SweepsPage", window.page("sweeps"))
    assert page._wanted == "20261128-031502-8c1d"


def test_nothing_of_the_page_is_imported_before_the_first_paint() -> None:
    code = (
        "import sys, tempfile, pathlib; from PySide6.QtWidgets import QApplication\n"
        "from torchyard_core.home import Home; from torchyard_gui.app import make_window\n"
        "application = QApplication([]); home = Home(pathlib.Path(tempfile.mkdtemp()))\n"
        "window = make_window(home, home.fleet_file, None)\n"
        "print([name for name in sys.modules if 'sweep' in name])"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr

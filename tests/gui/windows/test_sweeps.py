"""Tests of the Sweeps page within the window: how it is reached, and that trials open in the editor."""

from __future__ import annotations

import subprocess
import sys
from typing import cast

from PySide6.QtCore import Qt
from PySide6.QtTest import QTest
from pytestqt.qtbot import QtBot
from tools.sample_sweep import LIVE, note_sweeps, show_sample_sweeps

from tests import REPOSITORY
from tests.gui.windows.conftest import wiring_of
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

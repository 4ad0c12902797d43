"""Tests that *Stop* and *Restart* never change places, and that the restart dialog asks where the new run begins."""

from __future__ import annotations

from typing import Any

from PySide6.QtCore import QPoint, Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QPushButton

from tests.gui.runs.conftest import MakePage
from tests.gui.runs.fake_hosts import Acting
from torchyard_core.home import Home
from torchyard_gui.runs.page import RunsPage
from torchyard_gui.runs.restart import RestartDialog
from torchyard_gui.theme.tokens import METRICS

LEFT = Qt.MouseButton.LeftButton
CHECKPOINTS = [f"outputs/checkpoints/step-{step:012d}/{file}" for step in (900, 1200) for file in ("checkpoint.json",)]


def places(page: RunsPage) -> dict[str, QPoint]:
    return {button.text(): button.pos() for button in page.bar.findChildren(QPushButton) if button.isVisible()}


def ask(qtbot: Any, page: RunsPage, run: Acting) -> tuple[RestartDialog, list[bool]]:
    """Ends the run and opens the restart dialog.

    Returns the dialog, and a list of the launches that it requests.
    """
    run.end("succeeded", "")
    qtbot.waitUntil(page.actions_.restart.isEnabled)
    launched: list[bool] = []
    page.restarting.launch = lambda run, text, file, *, from_beginning: launched.append(from_beginning)  # type: ignore[method-assign]  # The test replaces this method.
    page.actions_.restart.trigger()
    assert page._restart_dialog is not None
    return page._restart_dialog, launched


def test_no_button_moves_when_a_run_ends(qtbot: Any, page: RunsPage, run: Acting) -> None:
    before = places(page)
    assert {"Restart …", "Stop …"} <= before.keys()
    stop = next(button for button in page.bar.findChildren(QPushButton) if button.text() == "Stop …")
    run.end("succeeded", "")
    qtbot.waitUntil(page.actions_.restart.isEnabled)
    assert places(page) == before
    QTest.mouseClick(stop, LEFT)  # A click on *Stop* may arrive just after the run has ended.
    assert page._restart_dialog is None
    assert not page.restarting.is_launching


def test_the_question_names_the_newest_checkpoint(qtbot: Any, page: RunsPage, run: Acting) -> None:
    run.files = CHECKPOINTS
    dialog, launched = ask(qtbot, page, run)
    assert not launched
    qtbot.waitUntil(lambda: dialog.resume.text() == "From the checkpoint at step 1,200")
    assert dialog.found.text() == "It is on gpu-a."
    assert dialog.resume.isChecked()
    QTest.keyClick(dialog, Qt.Key.Key_Return)
    assert launched == [False]


def test_from_the_beginning_is_a_choice_and_cancel_launches_nothing(qtbot: Any, page: RunsPage, run: Acting) -> None:
    run.files = CHECKPOINTS
    dialog, launched = ask(qtbot, page, run)
    QTest.keyClick(dialog, Qt.Key.Key_Escape)
    assert launched == []
    qtbot.waitUntil(lambda: page._restart_dialog is None)
    page.actions_.restart.trigger()
    again = page._restart_dialog
    assert again is not None
    QTest.mouseClick(again.begin, LEFT, pos=QPoint(8, again.begin.height() // 2))
    QTest.mouseClick(again.buttons.agree, LEFT)
    assert launched == [True]


def test_a_run_without_a_checkpoint_begins_at_the_first_step(qtbot: Any, page: RunsPage, run: Acting) -> None:
    dialog, launched = ask(qtbot, page, run)
    qtbot.waitUntil(lambda: not dialog.resume.isEnabled())
    assert dialog.begin.isChecked()
    assert dialog.found.text() == "The run has no checkpoint."
    QTest.mouseClick(dialog.buttons.agree, LEFT)
    assert launched == [True]


def test_a_silent_host_leaves_the_choice(qtbot: Any, page: RunsPage, run: Acting) -> None:
    run.end("succeeded", "")
    qtbot.waitUntil(page.actions_.restart.isEnabled)
    run.down.update(run.links)
    page.actions_.restart.trigger()
    dialog = page._restart_dialog
    assert dialog is not None
    qtbot.waitUntil(lambda: "does not answer" in dialog.found.text())
    assert dialog.resume.isEnabled()
    assert dialog.resume.isChecked()


def test_the_list_says_which_run_restarts_which(qtbot: Any, home: Home, run: Acting, make_page: MakePage) -> None:
    run.note(home, restarted_from="20251009-000000-gone")
    page = make_page()
    index = page.list_model.index(1)
    assert "restart of 20251009-000000-gone" in index.data(Qt.ItemDataRole.AccessibleTextRole)
    assert "Restart of 20251009-000000-gone" in index.data(Qt.ItemDataRole.ToolTipRole)


def test_a_narrow_bar_leaves_room_for_the_state(qtbot: Any, page: RunsPage) -> None:
    fetch = next(one for one in page.bar.findChildren(QPushButton) if one.accessibleName() == "Fetch …")
    assert fetch.text() == "Fetch …"
    margins = page.window().width() - page.bar.width()
    page.window().resize(1024 - METRICS.rail + margins, 700)
    qtbot.waitUntil(lambda: fetch.text() == "")
    assert fetch.accessibleName() == "Fetch …"
    assert "Stop …" in places(page)
    assert page.feed is not None
    page.bar.set_feed(page.feed, "한국어-음성인식-대규모-사전학습-conformer-seed17")
    assert "seed17" in page.bar.name.toolTip()
    state = "running 12 h 4 min · 3 restarts · step 1,204,112 · 11,840 samples/s"
    page.bar.title.show_state("running", state)
    qtbot.waitUntil(lambda: page.bar.state.shown_text() == state)
    page.bar.refresh()
    assert page.bar.state.toolTip().startswith(page.bar.state.text())
    page.window().resize(1300, 700)
    qtbot.waitUntil(lambda: fetch.text() == "Fetch …")

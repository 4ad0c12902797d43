"""Tests of notes and tags of runs: users write them in a dialog, see them beside the run, and find runs by them."""

from __future__ import annotations

from typing import Any

from PySide6.QtCore import Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QWidget

from tests.core.examples import host
from tests.gui.runs.conftest import MakePage
from tests.gui.runs.fake_hosts import Acting
from tests.gui.runs.test_runs_page import labels
from torchyard_core.home import Home
from torchyard_core.launch.runs.annotations import Annotation, Annotations
from torchyard_gui.runs.notes import NotesDialog
from torchyard_gui.runs.page import RunsPage

LEFT = Qt.MouseButton.LeftButton


def write(page: RunsPage, tags: str, note: str) -> NotesDialog:
    QTest.keyClick(page.list, Qt.Key.Key_N, Qt.KeyboardModifier.ControlModifier | Qt.KeyboardModifier.ShiftModifier)
    (dialog,) = page.findChildren(NotesDialog)
    dialog.tags.setText(tags)
    dialog.note.setPlainText(note)
    QTest.mouseClick(dialog.buttons.agree, LEFT)
    return dialog


def test_a_note_and_tags_are_kept_and_found(qtbot: Any, home: Home, run: Acting, make_page: MakePage) -> None:
    old = Acting((host("gpu-x", 1),), "{name: w, role: worker, replicas: 1, gpus: 1}", name="old", run_id="20250101-a")
    old.start()
    run.note(home)
    run.start()
    page = make_page(run, old)
    qtbot.waitUntil(lambda: labels(page) == ["Live", "digits", "old"])
    write(page, "baseline #lr-3", "Learning rate halved\n")
    notes = page.run_view.side.notes
    assert (notes.tags.text(), notes.note.text()) == ("#baseline  #lr-3", "Learning rate halved")
    assert Annotations(home.run_notes).load() == {run.run_id: Annotation("Learning rate halved", ("baseline", "lr-3"))}
    index = page.list_model.index(1)
    assert "#baseline #lr-3" in index.data(Qt.ItemDataRole.AccessibleTextRole)
    for found in ("#lr-3", "halved", "BASELINE"):
        page.search.setText(found)
        assert labels(page) == ["Live", "digits"]
    page.search.clear()
    page.list.setCurrentIndex(page.list_model.index(2))
    assert notes.note.isHidden()
    assert notes.tags.isHidden()


def test_what_cannot_be_kept_is_said_in_the_dialog(qtbot: Any, page: RunsPage, home: Home) -> None:
    dialog = write(page, "x" * 50, "")
    assert dialog.isVisible()
    assert "has 50 letters" in dialog.rows[0].problem
    dialog.tags.setText("short")
    home.run_notes.write_text("[]")
    QTest.mouseClick(dialog.buttons.agree, LEFT)
    assert dialog.isVisible()
    assert "holds no notes of runs" in dialog.rows[1].problem
    home.run_notes.unlink()
    gone: list[QWidget] = []
    dialog.finished.connect(lambda: gone.append(dialog))
    QTest.mouseClick(dialog.buttons.agree, LEFT)
    assert gone
    assert Annotations(home.run_notes).load()[page.feed.run.run_id].tags == ("short",)  # type: ignore[union-attr]  # The value is not None in this test.

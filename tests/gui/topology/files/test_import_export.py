"""Tests of importing documents of other systems, which are detected or refused with a line number, and of exporting
them.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QGuiApplication
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QComboBox, QFileDialog

from tests.core.interop import samples
from tests.core.interop.test_bad_input import BAD, OF_EACH
from tests.gui.topology.conftest import DIGITS
from tests.gui.topology.files.test_files import answer, change, choose_file, press
from tests.gui.topology.page_driver import CONTROL, LEFT, PLAIN, SHIFT, Driver
from torchyard_core.interop.document_writer import ExportOptions
from torchyard_core.interop.format_registry import FORMATS, READ, WRITTEN, write_foreign
from torchyard_gui.topology.files.conversion_report import DocumentWindow
from torchyard_gui.topology.files.export_dialog import ExportDialog
from torchyard_gui.topology.files.import_export import FormatChoice
from torchyard_gui.widgets.next_steps import quoted

LETTERS = "not one of them\n"


@pytest.fixture(autouse=True)
def _dialogs_of_qt(qapp: QApplication) -> None:
    qapp.setAttribute(Qt.ApplicationAttribute.AA_DontUseNativeDialogs)


def document(folder: Path, text: str, name: str = "job.yaml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def rows(driver: Driver) -> list[tuple[str, str, str]]:
    """Returns the rows of the problems dock: message, location and line."""
    table = driver.page.problems.table
    return [tuple(table.item(row, column).text() for column in range(3)) for row in range(table.rowCount())]


def back_on_the_page(driver: Driver) -> None:
    """Gives the focus back to the page after a dialog, as a desktop environment does."""
    driver.window.activateWindow()
    driver.wait_until(driver.window.isActiveWindow)
    driver.on_canvas()


# Tests of the import


def test_an_import_asks_for_unsaved_changes_and_is_a_new_topology(
    digits: Driver, digits_file: Path, tmp_path: Path
) -> None:
    path = document(tmp_path, samples.VERTEX)
    change(digits)
    digits.keys(Qt.Key.Key_I, CONTROL | SHIFT)
    choose_file(digits, path)
    answer(digits, "Cancel")
    assert digits.page.document.path == digits_file
    assert digits.undo_text() == "Add worker"
    assert rows(digits) == []
    digits.page.foreign.import_file(path)
    answer(digits, "Discard")
    assert digits.counts() == {"chief": 1, "workers": 3, "eval": 1}
    assert digits.page.document.path is None
    assert digits.page.document.is_modified
    assert digits_file.read_text() == DIGITS
    assert digits.undo_text() == ""
    change(digits)
    back_on_the_page(digits)
    assert digits.counts()["workers"] == 4
    digits.keys(Qt.Key.Key_Z, CONTROL)
    assert digits.counts()["workers"] == 3


def test_remarks_stand_in_the_dock_with_the_line_of_the_document(empty: Driver, tmp_path: Path) -> None:
    empty.page.foreign.import_file(document(tmp_path, samples.VERTEX))
    empty.page.checks.now()
    dock = empty.page.problems
    assert dock.is_open
    assert "remarks on job.yaml" in dock.line.text.text()
    (disk,) = (row for row in range(dock.table.rowCount()) if "“diskSpec”" in dock.table.item(row, 0).text())
    assert rows(empty)[disk][1:] == ("job.yaml", "line 9")
    QTest.mouseClick(dock.table.viewport(), LEFT, PLAIN, dock.table.visualItemRect(dock.table.item(disk, 0)).center())
    (window,) = empty.page.findChildren(DocumentWindow)
    assert window.isVisible()
    assert window.view.toPlainText() == samples.VERTEX
    assert window.view.textCursor().blockNumber() == 8
    assert 9 in window.view.marked_lines()
    window.close()
    QTest.mouseClick(dock.line.dismiss, LEFT)
    assert [row for row in rows(empty) if row[1] == "job.yaml"] == []
    assert "remark" not in dock.line.text.text()


def test_remarks_go_with_the_document(empty: Driver, tmp_path: Path, digits_file: Path) -> None:
    empty.page.foreign.import_file(document(tmp_path, samples.SINGA, "job.conf"))
    assert rows(empty)
    empty.page.open(digits_file)
    answer(empty, "Discard")
    assert rows(empty) == []


def test_every_format_that_is_read_is_recognised_by_what_is_in_it(empty: Driver, tmp_path: Path) -> None:
    documents = {**OF_EACH, "tf-config": samples.TF_CONFIG}
    assert set(documents) == set(READ)
    for name, text in documents.items():
        empty.page.document.start_new()
        empty.page.foreign.import_file(document(tmp_path, text, name))
        assert empty.notice() == "", name
        assert empty.counts(), name


def test_a_document_of_another_format_is_told_and_nothing_changes(digits: Driver, tmp_path: Path) -> None:
    path = document(tmp_path, samples.VERTEX)
    digits.keys(Qt.Key.Key_I, CONTROL | SHIFT)
    (dialog,) = (box for box in digits.page.findChildren(QFileDialog) if box.isVisible())
    kinds = dialog.findChild(QComboBox, "fileTypeCombo")
    assert kinds is not None
    assert kinds.count() == 1 + len(READ)
    kinds.setCurrentIndex(kinds.findText("CloudML", Qt.MatchFlag.MatchStartsWith))
    kinds.activated.emit(kinds.currentIndex())
    choose_file(digits, path)
    digits.wait_until(lambda: digits.notice() != "")
    assert digits.notice() == "job.yaml:1: this looks like a Vertex job, not CloudML."
    assert digits.counts() == {"chief": 1, "workers": 4}
    press(digits, "Import it as Vertex AI workerPoolSpecs")
    assert digits.notice() == ""
    assert digits.counts() == {"chief": 1, "workers": 3, "eval": 1}


def test_what_is_wrong_is_told_with_its_line_and_what_is_allowed(digits: Driver, tmp_path: Path) -> None:
    change(digits)
    for name, text, line, message, hint in BAD:
        digits.page.foreign.import_file(document(tmp_path, text, "doc"), name)
        assert digits.notice().startswith(f"doc:{line}: "), digits.notice()
        assert quoted(message) in digits.notice()
        assert quoted(hint) in digits.notice()
    assert digits.counts() == {"chief": 1, "workers": 5}
    assert digits.undo_text() == "Add worker"
    assert rows(digits) == []


BROKEN = [
    ("trainingInput:\n  scaleTier: [CUSTOM\n", "job.yaml:2: the “[” that begins here is not closed by “]”"),
    ('{"cluster": {"worker": ["a:1"]},\n "task": {"type": "worker}', "job.yaml:2: the quote that begins here"),
    (
        "#!/bin/bash\n#SBATCH --nodes=2\n",
        "job.yaml looks like a Slurm batch script. This format can only be exported. These",
    ),
    ("", "job.yaml: the file is empty."),
    ("\x00", "control character"),
]


def test_a_broken_document_gets_its_sentence(digits: Driver, tmp_path: Path) -> None:
    for text, said in BROKEN:
        digits.page.foreign.import_file(document(tmp_path, text))
        for box in (box for box in digits.page.findChildren(FormatChoice) if box.isVisible()):
            QTest.mouseClick(box.ok, LEFT)
        assert said in digits.notice()
    assert digits.counts() == {"chief": 1, "workers": 4}


def test_what_cannot_be_recognised_is_asked_for(digits: Driver, tmp_path: Path) -> None:
    path = document(tmp_path, LETTERS)
    digits.page.foreign.import_file(path)
    (box,) = digits.page.findChildren(FormatChoice)
    QTest.keyClick(box, Qt.Key.Key_Escape)
    assert digits.notice() == ""
    digits.page.foreign.import_file(path)
    (box,) = (box for box in digits.page.findChildren(FormatChoice) if box.isVisible())
    assert box.list.count() == len(READ)
    QTest.keyClick(box.list, Qt.Key.Key_Down)
    QTest.keyClick(box.list, Qt.Key.Key_Return)
    assert digits.notice().startswith("job.yaml:1: this is not a Vertex job. It must hold “workerPoolSpecs”")
    assert digits.counts() == {"chief": 1, "workers": 4}


def test_a_topology_is_opened_instead_and_what_is_not_there_is_told(
    empty: Driver, digits_file: Path, tmp_path: Path
) -> None:
    empty.page.foreign.import_file(tmp_path / "no.conf")
    assert empty.notice().startswith("no.conf: there is no such file.")
    empty.page.foreign.import_file(digits_file)
    assert empty.notice() == "digits.yaml looks like a Torchyard topology."
    press(empty, "Open it")
    assert empty.page.document.path == digits_file


def test_a_foreign_document_that_was_opened_can_be_imported(empty: Driver, tmp_path: Path) -> None:
    empty.page.open(document(tmp_path, samples.CLOUDML_CUSTOM))
    assert empty.notice() == "job.yaml looks like a CloudML job, not a topology."
    press(empty, "Import it")
    assert empty.counts() == {"chief": 1, "workers": 9, "servers": 3}
    assert empty.page.document.path is None
    assert empty.page.palette_.isEnabled()
    empty.page.document.start_new()
    empty.page.open(document(tmp_path, samples.SINGA, "dropped.conf"))
    assert empty.notice() == "dropped.conf looks like a SINGA job, not a topology."
    press(empty, "Import it")
    assert empty.counts() == {"workers": 4, "servers": 2}


# Tests of the export


def export_dialog(driver: Driver) -> ExportDialog:
    back_on_the_page(driver)
    driver.keys(Qt.Key.Key_E, CONTROL | SHIFT)
    (dialog,) = (box for box in driver.page.findChildren(ExportDialog) if box.isVisible())
    return dialog


def test_what_is_shown_is_written_and_its_remarks_stand_in_the_dock(digits: Driver, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    dialog = export_dialog(digits)
    assert [dialog.format.itemText(row) for row in range(dialog.format.count())] == [
        FORMATS[name].title for name in WRITTEN
    ]
    digits.pick(dialog.format, FORMATS["kubernetes"].title)
    digits.pick(dialog.form, "job")
    dialog.image.setFocus()
    QTest.keyClicks(dialog.image, "registry/x:1")
    expected = write_foreign("kubernetes", digits.value, ExportOptions("job", "registry/x:1"))
    assert dialog.preview.toPlainText() == expected.text
    QTest.mouseClick(dialog.copy, LEFT)
    assert QGuiApplication.clipboard().text() == expected.text
    QTest.mouseClick(dialog.save, LEFT)
    choose_file(digits, folder / "job.yaml")
    digits.wait_until(lambda: (folder / "job.yaml").exists())
    assert (folder / "job.yaml").read_text(encoding="utf-8") == expected.text
    assert [file.name for file in folder.iterdir()] == ["job.yaml"]
    assert not dialog.isVisible()
    assert [(text, place) for text, place, _ in rows(digits)] == [
        (quoted(remark.message), "job.yaml") for remark in expected.remarks
    ]
    assert not digits.page.document.is_modified
    assert export_dialog(digits).name == "kubernetes", "the format of the last time"


def test_every_format_that_is_written_can_be_chosen(digits: Driver) -> None:
    dialog = export_dialog(digits)
    for name in WRITTEN:
        one = FORMATS[name]
        digits.pick(dialog.format, one.title)
        assert dialog.name == name
        assert dialog.preview.toPlainText() == write_foreign(name, digits.value).text
        assert dialog.rows["image"].isVisible() is one.takes_image
        assert dialog.rows["replica"].isVisible() is (name in ("cluster-spec", "tf-config"))
        assert dialog.rows["form"].isVisible() is (len(one.forms) > 1)
    digits.pick(dialog.format, FORMATS["tensorflow"].title)
    digits.pick(dialog.form, "sparse")
    digits.pick(dialog.replica, "worker-1")
    assert dialog.preview.toPlainText().startswith('{"worker": {1: "worker-1:2222"}')
    digits.pick(dialog.format, FORMATS["tf-config"].title)
    digits.pick(dialog.form, "export")
    digits.pick(dialog.replica, "worker-2")
    assert dialog.preview.toPlainText().startswith("export TF_CONFIG='")
    assert '"index":2' in dialog.preview.toPlainText()
    QTest.keyClick(dialog, Qt.Key.Key_Escape)


def test_another_file_of_that_name_is_replaced_only_when_told_to(digits: Driver, tmp_path: Path) -> None:
    other = document(tmp_path, "mine", "other.conf")
    dialog = export_dialog(digits)
    digits.pick(dialog.format, FORMATS["singa"].title)
    dialog.write_to(other)
    assert other.read_text() == "mine"
    answer(digits, "Replace", "replace")
    assert other.read_text() == write_foreign("singa", digits.value).text


def test_what_cannot_be_written_is_told_in_the_dialog_and_leaves_no_half(digits: Driver, tmp_path: Path) -> None:
    there = document(tmp_path, "mine", "file")
    dialog = export_dialog(digits)
    dialog.write_to(there / "job.yaml")
    assert dialog.isVisible()
    assert "cannot be written: " in dialog.message.text()
    assert there.read_text() == "mine"
    QTest.keyClick(dialog, Qt.Key.Key_Escape)
    digits.page.editor.add_preset("sandblaster")
    digits.page.editor.add_preset("reduction_server")
    digits.page.editor.set_strategy("kind", "none", "strategy")
    dialog = export_dialog(digits)
    digits.pick(dialog.format, FORMATS["vertex"].title)
    assert "pool 2 holds parameter servers or reducers, not both" in dialog.message.text()
    assert not dialog.save.isEnabled()
    QTest.keyClick(dialog, Qt.Key.Key_Escape)


def test_a_topology_with_errors_is_not_exported(digits: Driver) -> None:
    digits.page.editor.set_strategy("kind", "reduction_server", "strategy")
    digits.on_canvas()
    digits.keys(Qt.Key.Key_E, CONTROL | SHIFT)
    assert digits.page.findChildren(ExportDialog) == []
    assert digits.notice() == "1 error prevents the export."
    assert digits.page.problems.is_open
    digits.page.editor.set_strategy("kind", "all_reduce", "strategy")
    export_dialog(digits).reject()
    assert digits.notice() == ""


def test_nothing_drawn_cannot_be_exported(empty: Driver) -> None:
    assert not empty.page.foreign.export_action.isEnabled()
    assert {action.property("menu") for action in empty.page.foreign.actions()} == {"file"}

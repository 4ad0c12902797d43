"""Tests of opening and saving files, and of the notices and buttons that the page shows for problems with files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QFileDialog, QLineEdit, QPushButton

from tests.gui.topology.conftest import DIGITS, MakeDriver
from tests.gui.topology.page_driver import CONTROL, SHIFT, Driver
from torchyard_core.topology.file import read_topology
from torchyard_gui.widgets.dialogs import ConfirmationDialog


def press(driver: Driver, text: str) -> None:
    """Presses a button of the page's notice."""
    button = next(button for button in driver.page.notice_bar.buttons if button.text() == text)
    QTest.mouseClick(button, Qt.MouseButton.LeftButton)


def answer(driver: Driver, words: str, name: str = "unsaved") -> None:
    """Answers the question about unsaved changes, or any other question that is shown."""
    buttons = question(driver, name).findChildren(QPushButton)
    QTest.mouseClick(next(button for button in buttons if button.text() == words), Qt.MouseButton.LeftButton)


def choose_file(driver: Driver, path: Path | str) -> None:
    """Types a name over the one that the file dialog proposes, and accepts the dialog."""
    (dialog,) = (box for box in driver.page.findChildren(QFileDialog) if box.isVisible())
    name = dialog.findChild(QLineEdit, "fileNameEdit")
    assert name is not None
    driver.wait_until(name.hasFocus)  # The dialog has selected the proposed name.
    QTest.keyClicks(name, str(path))
    assert name.text() == str(path)
    QTest.keyClick(name, Qt.Key.Key_Return)


def question(driver: Driver, name: str) -> ConfirmationDialog:
    """Returns the question that is shown; it is not modal."""
    (box,) = (box for box in driver.page.findChildren(ConfirmationDialog, name) if box.isVisible())
    return box


@pytest.fixture(autouse=True)
def qt_dialogs(qapp: QApplication) -> None:
    qapp.setAttribute(Qt.ApplicationAttribute.AA_DontUseNativeDialogs)


def change(driver: Driver) -> None:
    driver.choose(driver.page.palette_.roles, "worker")
    driver.on_canvas()


# Tests of opening and saving


def test_a_file_is_opened_by_the_dialog(empty: Driver, digits_file: Path) -> None:
    empty.keys(Qt.Key.Key_O, CONTROL)
    choose_file(empty, digits_file)
    empty.wait_until(lambda: empty.page.document.path == digits_file)
    assert empty.counts() == {"chief": 1, "workers": 4}
    assert empty.recent.recent_files == [digits_file]
    assert empty.page.bar.file.text() == "digits.yaml"


def test_an_untitled_topology_is_saved_under_a_name(empty: Driver, tmp_path: Path) -> None:
    change(empty)
    assert empty.page.bar.unsaved.text() == "• unsaved"
    empty.keys(Qt.Key.Key_S, CONTROL)
    choose_file(empty, tmp_path / "drawn.yaml")
    empty.wait_until(lambda: (tmp_path / "drawn.yaml").exists())
    assert empty.page.bar.unsaved.text() == ""
    assert empty.page.bar.file.text() == "drawn.yaml"
    # A topology without a name is named after its file when it is first saved. Saving it under other names does not
    # change its name.
    assert empty.value.name == "drawn"
    assert empty.undo_text() == "Rename to drawn"
    assert empty.page.files.save_to(tmp_path / "other.yaml")
    assert empty.value.name == "drawn"


@pytest.mark.parametrize("typed", ["second.yaml", "digi", "digits2.yaml"])
def test_save_as_takes_the_name_that_is_typed_and_asks_nothing(
    digits: Driver, digits_file: Path, tmp_path: Path, typed: str
) -> None:
    change(digits)
    digits.keys(Qt.Key.Key_S, CONTROL | SHIFT)
    choose_file(digits, typed)
    saved = tmp_path / (typed if typed.endswith(".yaml") else f"{typed}.yaml")
    digits.wait_until(lambda: digits.page.document.path == saved)
    assert digits.page.findChildren(ConfirmationDialog) == []
    assert digits_file.read_text() == DIGITS
    assert read_topology(saved).topology == digits.value


def test_save_as_over_another_file_asks_first_and_may_be_another_name(digits: Driver, tmp_path: Path) -> None:
    other = tmp_path / "other.yaml"
    other.write_text("mine")
    change(digits)
    digits.keys(Qt.Key.Key_S, CONTROL | SHIFT)
    choose_file(digits, "other.yaml")
    QTest.keyClick(question(digits, "replace"), Qt.Key.Key_Escape)
    assert other.read_text() == "mine"
    choose_file(digits, "third.yaml")
    digits.wait_until(lambda: digits.page.document.name == "third.yaml")
    assert other.read_text() == "mine"


def test_save_as_over_another_file_replaces_it_when_told_to(digits: Driver, tmp_path: Path) -> None:
    other = tmp_path / "other.yaml"
    other.write_text("mine")
    change(digits)
    digits.keys(Qt.Key.Key_S, CONTROL | SHIFT)
    choose_file(digits, "other.yaml")
    answer(digits, "Replace", "replace")
    assert digits.page.document.path == other
    assert read_topology(other).topology == digits.value


def test_save_as_goes_on_in_the_new_file(digits: Driver, digits_file: Path, tmp_path: Path) -> None:
    change(digits)
    digits.keys(Qt.Key.Key_S, CONTROL | SHIFT)
    choose_file(digits, tmp_path / "second.yaml")
    digits.wait_until(lambda: digits.page.document.name == "second.yaml")
    assert digits_file.read_text() == DIGITS
    assert digits.page.editor.stack.canUndo()


def test_titles_tell_the_file_and_whether_it_is_saved(digits: Driver) -> None:
    told: list[str] = []
    digits.page.title_changed.connect(told.append)
    change(digits)
    digits.page.save()
    assert told[0] == "digits.yaml*"
    assert told[-1] == "digits.yaml"


# Tests of unsaved changes


def test_opening_over_unsaved_changes_asks_first(digits: Driver, tmp_path: Path, digits_file: Path) -> None:
    other = tmp_path / "other.yaml"
    other.write_text(DIGITS.replace("digits", "other"))
    change(digits)
    digits.page.open(other)
    answer(digits, "Cancel")
    assert digits.page.document.path == digits_file
    assert digits.page.document.is_modified
    digits.page.open(other)
    answer(digits, "Discard")
    assert digits.page.document.path == other
    assert digits_file.read_text() == DIGITS


def test_a_new_topology_can_be_begun_once_the_old_is_saved(digits: Driver, digits_file: Path) -> None:
    change(digits)
    digits.keys(Qt.Key.Key_N, CONTROL)
    answer(digits, "Save")
    assert digits.page.document.path is None
    assert digits.counts() == {}
    topology = read_topology(digits_file).topology
    assert topology is not None
    assert topology.pools[1].replicas == 5


def test_closing_asks_and_closes_after_the_answer(digits: Driver) -> None:
    change(digits)
    assert not digits.window.close()
    answer(digits, "Cancel")
    assert digits.window.isVisible()
    assert not digits.window.close()
    answer(digits, "Discard")
    assert not digits.window.isVisible()


def test_closing_saves_where_that_is_wished(digits: Driver, digits_file: Path) -> None:
    change(digits)
    digits.window.close()
    answer(digits, "Save")
    assert not digits.window.isVisible()
    assert "replicas: 5" in digits_file.read_text()


def test_closing_an_untitled_topology_asks_for_its_name(empty: Driver, tmp_path: Path) -> None:
    change(empty)
    empty.window.close()
    answer(empty, "Save")
    assert empty.window.isVisible()
    choose_file(empty, tmp_path / "kept.yaml")
    empty.wait_until(lambda: not empty.window.isVisible())
    assert (tmp_path / "kept.yaml").exists()


# Tests of files that cannot be saved or opened


def test_a_file_that_is_not_there(digits: Driver, tmp_path: Path) -> None:
    digits.page.open(tmp_path / "digits.yml")
    assert "there is no such file. Did you mean" in digits.notice()
    assert digits.page.document.name == "digits.yaml"


def test_a_file_that_another_program_changed_is_noticed(digits: Driver, digits_file: Path) -> None:
    change(digits)
    replace_file(digits_file, DIGITS.replace("replicas: 4", "replicas: 2"))
    digits.wait_until(lambda: "was changed by another program" in digits.notice())
    assert "Your own changes are not saved." in digits.notice()
    press(digits, "Read theirs")
    assert digits.counts() == {"chief": 1, "workers": 2}
    assert digits.notice() == ""


def test_one_s_own_is_kept_where_that_is_wished(digits: Driver, digits_file: Path) -> None:
    change(digits)
    replace_file(digits_file, DIGITS + "# theirs\n")
    digits.wait_until(lambda: digits.notice() != "")
    press(digits, "Keep mine")
    digits.on_canvas()
    digits.keys(Qt.Key.Key_S, CONTROL)
    assert "replicas: 5" in digits_file.read_text()
    assert digits.notice() == ""


def test_saving_over_changes_of_another_program_is_refused_even_unnoticed(digits: Driver, digits_file: Path) -> None:
    change(digits)
    digits_file.write_text(DIGITS + "# theirs\n")
    digits.keys(Qt.Key.Key_S, CONTROL)
    assert "was changed by another program" in digits.notice()
    assert digits_file.read_text().endswith("# theirs\n")


def test_a_file_that_vanished_can_be_saved_again(digits: Driver, digits_file: Path) -> None:
    digits_file.unlink()
    digits.wait_until(lambda: "no longer exists" in digits.notice())
    press(digits, "Save")
    assert digits_file.read_text() == DIGITS
    digits.wait_until(lambda: digits.notice() == "")


def test_a_read_only_file_says_so_and_offers_another_name(
    make_driver: MakeDriver, digits_file: Path, tmp_path: Path
) -> None:
    digits_file.chmod(0o444)
    driver = make_driver()
    driver.page.open(digits_file)
    assert "is read-only: changes can be saved under another name." in driver.notice()
    change(driver)
    driver.keys(Qt.Key.Key_S, CONTROL)
    assert f"{digits_file} is read-only." in driver.notice()
    press(driver, "Save as …")
    choose_file(driver, tmp_path / "mine.yaml")
    driver.wait_until(lambda: driver.page.document.name == "mine.yaml")
    assert driver.notice() == ""
    assert digits_file.read_text() == DIGITS


def test_a_file_that_holds_no_topology_shows_its_problems_and_is_read_again_when_mended(
    empty: Driver, digits_file: Path
) -> None:
    replace_file(digits_file, DIGITS.replace("script:", "scirpt:"))
    empty.page.open(digits_file)
    assert empty.codes() == ["unknown-key"]
    assert empty.page.problems.is_open
    assert empty.page.yaml.isVisible()
    assert empty.page.yaml.view.marked_lines() == [13]
    empty.choose(empty.page.palette_.roles, "worker")
    assert empty.counts() == {}
    replace_file(digits_file, DIGITS)
    empty.wait_until(lambda: empty.counts() == {"chief": 1, "workers": 4})
    empty.choose(empty.page.palette_.roles, "worker")
    assert empty.counts() == {"chief": 1, "workers": 5}


def test_text_that_is_no_yaml_is_told_by_its_line(empty: Driver, tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text("version: 1\nname: [a\npools: []\n")
    empty.page.open(path)
    empty.page.checks.now()
    (problem,) = empty.page.problems.problems
    assert problem.line == 2
    assert empty.page.yaml.view.marked_lines() == [2]


def replace_file(path: Path, text: str) -> None:
    """Replaces a file as editors do when they save it."""
    beside = path.with_suffix(".new")
    beside.write_text(text)
    beside.replace(path)


# Tests of crash recovery

DIES_WITH_WORK = """
import os, sys
from pathlib import Path
from torchyard_core.topology.document.crash_recovery import Recovery
Recovery(Path(sys.argv[1])).write(Path(sys.argv[2]), Path(sys.argv[3]).read_text())
os._exit(9)
"""


def die_with_work(folder: Path, path: Path, text: str) -> None:
    (path.parent / "work.txt").write_text(text)
    command = [sys.executable, "-c", DIES_WITH_WORK, str(folder), str(path), str(path.parent / "work.txt")]
    assert subprocess.run(command, check=False, env=os.environ.copy()).returncode == 9


def test_unsaved_work_of_a_program_that_died_is_restored_as_an_edit(
    make_driver: MakeDriver, digits_file: Path, tmp_path: Path
) -> None:
    die_with_work(tmp_path / "recovery", digits_file, DIGITS.replace("replicas: 4", "replicas: 9"))
    driver = make_driver(recovery=tmp_path / "recovery")
    assert driver.notice().startswith("Unsaved work on digits.yaml from ")
    press(driver, "Restore it")
    assert driver.page.document.path == digits_file
    assert driver.counts() == {"chief": 1, "workers": 9}
    assert driver.page.document.is_modified
    driver.on_canvas()
    driver.keys(Qt.Key.Key_Z, CONTROL)
    assert driver.page.document.text == DIGITS


def test_unsaved_text_with_an_error_is_restored_as_it_was_typed(
    make_driver: MakeDriver, digits_file: Path, tmp_path: Path
) -> None:
    typed = DIGITS.replace("replicas: 4", "replicas: four")
    die_with_work(tmp_path / "recovery", digits_file, typed)
    driver = make_driver(recovery=tmp_path / "recovery")
    press(driver, "Restore it")
    assert driver.page.document.text == typed
    assert driver.codes() == ["wrong-value"]
    assert driver.counts() == {"chief": 1, "workers": 4}
    driver.page.editor.undo()
    assert (driver.page.document.text, driver.page.document.is_modified) == (DIGITS, False)


def test_unsaved_work_can_be_discarded(make_driver: MakeDriver, digits_file: Path, tmp_path: Path) -> None:
    die_with_work(tmp_path / "recovery", digits_file, DIGITS)
    driver = make_driver(recovery=tmp_path / "recovery")
    press(driver, "Discard it")
    assert driver.notice() == ""
    assert list((tmp_path / "recovery").iterdir()) == []


def test_work_is_kept_a_little_after_a_change_and_gone_once_saved(
    make_driver: MakeDriver, digits_file: Path, tmp_path: Path
) -> None:
    driver = make_driver(recovery=tmp_path / "recovery")
    driver.page.open(digits_file)
    change(driver)
    driver.wait_until(lambda: any((tmp_path / "recovery").glob("*.json")))
    # The process of this unsaved work is still running, so another page must not offer to recover it.
    assert make_driver(recovery=tmp_path / "recovery").notice() == ""
    driver.page.save()
    assert list((tmp_path / "recovery").iterdir()) == []

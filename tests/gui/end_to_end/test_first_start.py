"""Tests of the first start, when there is no home folder, and of files that are read-only or that other programs
change.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QLabel, QScrollArea
from pytestqt.qtbot import QtBot

from tests.end_to_end.running import DIGITS
from tests.gui.end_to_end.simulated_user import SimulatedUser
from tests.gui.topology.page_driver import CONTROL, SHIFT
from torchyard_gui.windows.welcome import OpenExampleButton, example_file

THEIRS = "# changed by another program\n"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Returns the path of a home folder that does not exist yet."""
    return tmp_path / "none" / "torchyard"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Returns the topology file of a copy of the digits example."""
    folder = tmp_path / "digits"
    shutil.copytree(DIGITS, folder)
    return folder / "three-hosts.yaml"


def rename(person: SimulatedUser, name: str) -> None:
    person.draw.on_canvas()
    person.keys(Qt.Key.Key_Escape)
    person.draw.fill(person.topology.inspector.topology, "name", name)
    person.draw.on_canvas()


def test_a_first_start_shows_this_computer_and_the_way_to_the_example(
    qtbot: QtBot, isolated_home: None, home: Path
) -> None:
    person = SimulatedUser(qtbot, home)
    page = person.topology
    assert [status.name for status in person.fleet.hosts] == ["this-computer"]
    assert page.palette_.hosts.row_of("this-computer") is not None
    assert not page.notice_bar.isVisible()
    assert not page.problems.problems
    assert not page.launch_action.isEnabled()
    button = page.view.findChild(OpenExampleButton)
    assert isinstance(button, OpenExampleButton)
    person.press(button)
    assert page.document.path == example_file()
    assert person.draw.where("chief-0") == person.draw.where("worker-0") == "this-computer"
    assert set(person.draw.codes()) <= {"unchecked-host"}

    person.keys(Qt.Key.Key_2, CONTROL)
    assert person.window.current == "fleet"
    assert not person.fleet_page.notice.isVisible()
    assert "this-computer" in person.fleet_page.rows.names

    person.keys(Qt.Key.Key_3, CONTROL)
    assert person.window.current == "runs"
    assert person.runs.empty.isVisible()
    assert any("No runs yet" in text.text() for text in person.runs.empty.findChildren(QLabel))
    person.hosts_were_asked()
    assert not page.notice_bar.isVisible()


def test_a_read_only_file_says_so_and_is_saved_elsewhere(
    qtbot: QtBot, isolated_home: None, home: Path, file: Path
) -> None:
    file.chmod(0o444)
    before = file.read_bytes()
    person = SimulatedUser(qtbot, home, file=file)
    page = person.topology
    assert "is read-only" in page.notice_bar.text
    rename(person, "mine")
    person.keys(Qt.Key.Key_S, CONTROL)
    person.wait_until(lambda: "read-only" in page.notice_bar.text and page.notice_bar.kind == "fail")
    assert file.read_bytes() == before
    assert page.document.is_modified

    person.press(person.button(page.notice_bar, "Save as"))
    other = file.with_name("mine.yaml")
    person.type_file_name(other)
    assert b"mine" in other.read_bytes()
    assert file.read_bytes() == before
    assert not page.notice_bar.isVisible()


def test_a_file_changed_by_another_program_is_never_overwritten_without_a_question(
    qtbot: QtBot, isolated_home: None, home: Path, file: Path
) -> None:
    person = SimulatedUser(qtbot, home, file=file)
    page = person.topology
    text = file.read_text()
    rename(person, "mine")
    file.write_text(THEIRS + text)
    person.wait_until(lambda: page.notice_bar.isVisible() and "was changed by another program" in page.notice_bar.text)
    person.keys(Qt.Key.Key_S, CONTROL)
    assert file.read_text() == THEIRS + text

    person.press(person.button(page.notice_bar, "Keep mine"))
    person.draw.on_canvas()
    person.keys(Qt.Key.Key_S, CONTROL)
    person.wait_until(lambda: "name: mine" in file.read_text())
    assert not page.document.is_modified

    # The same conflict occurs again. This time, the user keeps the other program's version.
    rename(person, "mine again")
    file.write_text(THEIRS + text)
    person.wait_until(lambda: page.notice_bar.isVisible() and "was changed by another program" in page.notice_bar.text)
    person.press(person.button(page.notice_bar, "Read theirs"))
    assert page.document.value.name == "digits-three-hosts"
    assert page.document.text == THEIRS + text
    assert not page.document.is_modified


def test_undoing_everything_gives_the_first_bytes_of_the_file(
    qtbot: QtBot, isolated_home: None, home: Path, file: Path
) -> None:
    first = file.read_bytes()
    person = SimulatedUser(qtbot, home, file=file)
    page, draw = person.topology, person.draw
    assert len(page.inspector.findChildren(QScrollArea)) == 2, "the first selection would wait for its fields"
    for name in ("worker", "ps", "evaluator"):
        draw.choose(page.palette_.roles, name)
    draw.choose(page.palette_.hosts, "this-computer")
    assert draw.drop(page.palette_.roles, "worker", "this-computer")
    draw.carry("worker-0", "this-computer")
    draw.select("worker-0", "worker-1")
    for key in (Qt.Key.Key_C, Qt.Key.Key_V, Qt.Key.Key_D, Qt.Key.Key_X):
        person.keys(key, CONTROL)
    draw.select("chief-0")
    draw.fill(page.inspector.pools.runs_with, "env", "A=1")
    draw.fill(page.inspector.pools.pool, "hosts", "this-computer")
    draw.on_canvas()
    person.keys(Qt.Key.Key_Delete)
    rename(person, "another")
    draw.fill(page.inspector.program.program, "args", "--lr 0.1")
    draw.fill(page.inspector.program.program, "env", "")
    draw.pick(page.bar.strategy, page.bar.strategy.itemText(0))
    draw.on_canvas()
    person.keys(Qt.Key.Key_S, CONTROL)
    steps = page.editor.stack.count()
    assert steps >= 12, [page.editor.stack.text(step) for step in range(steps)]
    assert file.read_bytes() != first

    last = page.document.value
    for _ in range(steps):
        person.keys(Qt.Key.Key_Z, CONTROL)
    assert not page.editor.stack.canUndo()
    assert page.document.text.encode() == first
    person.keys(Qt.Key.Key_S, CONTROL)
    assert file.read_bytes() == first
    for _ in range(steps):
        person.keys(Qt.Key.Key_Z, CONTROL | SHIFT)
    assert page.document.value == last

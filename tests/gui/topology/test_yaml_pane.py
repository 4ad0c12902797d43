"""Tests of the YAML editor beside the canvas: edits change the topology, errors are marked, and undo is shared."""

from __future__ import annotations

from pathlib import Path

import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QTextCharFormat, QTextCursor
from PySide6.QtTest import QTest

from tests.gui.topology.conftest import DIGITS
from tests.gui.topology.page_driver import CONTROL, SHIFT, Driver
from torchyard_core.topology.file import TopologyFile
from torchyard_gui.widgets.yaml_editor import indent_after, wrong_part


def place_caret(driver: Driver, after: str, *, select: str = "") -> None:
    """Focuses the editor, and places the caret after the string `after`, or selects the string `select` there."""
    view = driver.page.yaml.view
    view.setFocus()
    end = view.text.index(after) + len(after)
    cursor = view.textCursor()
    cursor.setPosition(end)
    if select:
        cursor.setPosition(end + len(select), QTextCursor.MoveMode.KeepAnchor)
        assert cursor.selectedText() == select
    view.setTextCursor(cursor)


@pytest.fixture
def text(digits: Driver) -> Driver:
    """Returns a page with a chief and four workers, whose YAML editor is open."""
    digits.keys(Qt.Key.Key_E, CONTROL)
    assert digits.page.yaml.isVisible()
    return digits


def type_over(driver: Driver, after: str, old: str, new: str) -> None:
    place_caret(driver, after, select=old)
    driver.type(new)


WORKERS = "role: worker, replicas: "


def test_the_yaml_follows_and_marks_the_line(digits: Driver) -> None:
    yaml = digits.page.yaml.view
    digits.keys(Qt.Key.Key_E, CONTROL)
    assert yaml.toPlainText() == digits.page.document.text
    digits.choose(digits.page.palette_.roles, "worker")
    digits.wait_until(lambda: "replicas: 5" in yaml.toPlainText())
    digits.on_canvas()
    digits.keys(Qt.Key.Key_A, CONTROL | SHIFT)
    digits.fill(digits.page.inspector.program.program, "script", "no.py")
    digits.wait_until(lambda: yaml.marked_lines() != [])
    (line,) = yaml.marked_lines()
    assert yaml.toPlainText().splitlines()[line - 1] == "  script: no.py   # beside this file"


def test_ctrl_e_goes_to_the_text_and_back_to_the_canvas(digits: Driver) -> None:
    page = digits.page
    digits.keys(Qt.Key.Key_E, CONTROL)
    assert page.yaml.view.hasFocus()
    page.show_yaml.trigger()
    assert page.view.hasFocus()
    assert page.yaml.isHidden()


def test_typing_changes_the_topology_after_a_pause(text: Driver) -> None:
    type_over(text, WORKERS, "4", "6")
    assert text.page.yaml.is_typing
    assert text.counts()["workers"] == 4
    text.wait_until(lambda: text.counts()["workers"] == 6)
    assert "worker-5" in text.page.scene.names
    assert text.undo_text() == "Edit the text"
    assert text.page.document.text == DIGITS.replace(WORKERS + "4", WORKERS + "6")


def test_comments_and_layout_that_were_typed_survive_edits_on_the_canvas(text: Driver) -> None:
    place_caret(text, "# the others")
    text.type(",   my  words")
    text.wait_until(lambda: not text.page.yaml.is_typing)
    text.on_canvas()
    text.choose(text.page.palette_.roles, "worker")
    typed = DIGITS.replace("# the others", "# the others,   my  words")
    assert text.page.document.text == typed.replace(WORKERS + "4", WORKERS + "5")
    text.wait_until(lambda: text.page.yaml.view.text == text.page.document.text)


def test_an_error_is_marked_in_place_and_the_canvas_keeps_the_last_valid_state(text: Driver) -> None:
    view = text.page.yaml.view
    type_over(text, "worker, ", "replicas", "replicsa")
    text.wait_until(lambda: view.marked_lines() == [9])
    assert text.counts() == {"chief": 1, "workers": 4}
    underlined = [mark.cursor.selectedText() for mark in view.extraSelections() if is_wavy(mark.format)]
    assert underlined == ["replicsa"]
    strip = text.page.yaml.strip
    assert strip.isVisible()
    assert strip.text.text().startswith("Line 9: unknown key “replicsa”; did you mean “replicas”?")
    assert strip.text.text().endswith("The canvas shows the last valid text.")
    assert text.page.document.is_modified
    # While the text is invalid, actions that need valid text are refused with the number of the invalid line.
    text.on_canvas()
    text.choose(text.page.palette_.roles, "worker")
    assert text.counts()["workers"] == 4
    assert text.page.editor.add_preset("downpour").startswith("Line 9 of the text has an error")
    text.page.save()
    assert "Line 9 of the text" in text.notice() or "line 9 of the text" in text.notice()
    launched: list[TopologyFile] = []
    text.page.launch_requested.connect(launched.append)
    text.page.launch()
    assert launched == []
    # Once the user has corrected the text, it is applied immediately.
    type_over(text, "worker, ", "replicsa", "replicas")
    text.wait_until(lambda: view.marked_lines() == [])
    assert not strip.isVisible()
    assert text.page.document.text == DIGITS


def is_wavy(form: QTextCharFormat) -> bool:
    return form.underlineStyle() == QTextCharFormat.UnderlineStyle.WaveUnderline


def test_undo_is_one_stack_of_text_and_canvas(text: Driver) -> None:
    texts = [text.page.document.text]

    def note() -> None:
        texts.append(text.page.document.text)

    type_over(text, WORKERS, "4", "6")
    text.wait_until(lambda: not text.page.yaml.is_typing)
    note()
    text.on_canvas()
    text.page.editor.pin(["worker-5"], "gpu-b:0")
    note()
    type_over(text, WORKERS, "6", "x")
    text.wait_until(lambda: text.page.document.problems != ())
    note()
    assert text.counts()["workers"] == 6
    # Ctrl+Z undoes the same edits in the editor and on the canvas.
    for number, expected in enumerate(reversed(texts[:-1])):
        if number % 2:
            text.on_canvas()
        else:
            text.page.yaml.view.setFocus()
        text.keys(Qt.Key.Key_Z, CONTROL)
        assert text.page.document.text == expected
    assert text.page.document.text == DIGITS
    assert not text.page.document.is_modified
    text.page.yaml.view.setFocus()
    for expected in texts[1:]:
        text.keys(Qt.Key.Key_Z, CONTROL | SHIFT)
        assert text.page.document.text == expected
    text.wait_until(lambda: text.page.yaml.view.text == texts[-1])


def test_undo_takes_back_what_was_just_typed(text: Driver) -> None:
    type_over(text, WORKERS, "4", "6")
    assert text.page.yaml.is_typing
    text.keys(Qt.Key.Key_Z, CONTROL)
    text.wait_until(lambda: text.page.yaml.view.text == DIGITS)
    assert text.page.document.text == DIGITS


@pytest.mark.parametrize("use", ["save", "launch", "close", "canvas"])
def test_what_was_just_typed_is_in_whatever_comes_next(text: Driver, use: str, digits_file: Path) -> None:
    launched: list[TopologyFile] = []
    text.page.launch_requested.connect(launched.append)
    type_over(text, WORKERS, "4", "6")
    assert text.page.yaml.is_typing
    if use == "save":
        text.page.save()
        assert digits_file.read_text() == DIGITS.replace(WORKERS + "4", WORKERS + "6")
    elif use == "launch":
        text.page.launch()
        assert launched[0].topology is not None
        assert launched[0].topology.pools[1].replicas == 6
    elif use == "close":
        assert not text.page.can_close()
    else:
        text.choose(text.page.palette_.roles, "worker")
        assert text.counts()["workers"] == 7


def test_another_file_replaces_what_was_just_typed(text: Driver, tmp_path: Path) -> None:
    other = tmp_path / "other.yaml"
    other.write_text(DIGITS.replace("name: digits", "name: other"))
    type_over(text, WORKERS, "4", "6")
    text.page.files.open_now(other)
    text.page.checks.now()
    assert not text.page.yaml.is_typing
    assert text.page.yaml.view.text == other.read_text()
    assert not text.page.document.is_modified


def test_a_file_with_errors_shows_each_and_is_corrected_in_the_text(empty: Driver, digits_file: Path) -> None:
    typos = {"name:": "nmae:", "kind:": "knid:", "role: worker": "rloe: worker", "script:": "scirpt:"}
    wrong = DIGITS
    for right, typo in typos.items():
        wrong = wrong.replace(right, typo) if right != "name:" else wrong.replace("\nname:", "\nnmae:")
    digits_file.write_text(wrong)
    empty.page.open(digits_file)
    empty.page.checks.now()
    lines = [3, 5, 9, 13]
    assert empty.page.yaml.view.marked_lines() == lines
    said = empty.page.view.empty_texts
    assert said[0] == "4 lines of digits.yaml have errors"
    assert [f"Line {line}: unknown key" in said[1] for line in lines] == [True] * len(lines)
    empty.page.yaml.view.setFocus()
    empty.page.yaml.view.selectAll()
    empty.type(DIGITS.splitlines()[0])
    empty.page.yaml.view.show_text(DIGITS)
    empty.wait_until(lambda: empty.counts() == {"chief": 1, "workers": 4})
    assert empty.page.palette_.isEnabled()


def test_characters_of_any_width_stay_where_they_are(text: Driver) -> None:
    place_caret(text, "# What runs.")
    text.page.yaml.view.insertPlainText(" \U0001f600 \u00a0한글")
    text.wait_until(lambda: not text.page.yaml.is_typing)
    typed = DIGITS.replace("# What runs.", "# What runs. \U0001f600 \u00a0한글")
    assert text.page.document.text == typed
    text.choose(text.page.palette_.roles, "worker")
    text.page.checks.now()
    assert text.page.yaml.view.text == typed.replace(WORKERS + "4", WORKERS + "5")


def test_keys_for_indentation_and_leaving(text: Driver) -> None:
    view = text.page.yaml.view
    place_caret(text, "program:")
    text.keys(Qt.Key.Key_Return)
    text.type("module: x")
    text.keys(Qt.Key.Key_Return)
    text.keys(Qt.Key.Key_Tab)
    assert "program:\n  module: x\n    \n" in view.text
    text.keys(Qt.Key.Key_Escape)
    assert text.page.view.hasFocus()


@pytest.mark.parametrize(
    ("line", "indent"), [("pools:", 2), ("  - name: w", 4), ("  role: worker", 2), ("a: 1  # b:", 0), ("  - {a: 1}", 4)]
)
def test_the_indentation_of_the_next_line(line: str, indent: int) -> None:
    assert indent_after(line) == indent


def test_the_part_of_a_line_that_is_wrong() -> None:
    line = "  kind: all-reduce   # why"
    assert line[slice(*wrong_part(line, "kind must be one of a or b, not 'all-reduce'"))] == "all-reduce"
    assert line[slice(*wrong_part(line, "`strategy` is wrong"))] == "kind: all-reduce"


def test_keys_are_typed_and_not_shortcuts_of_the_page(text: Driver) -> None:
    place_caret(text, "# What runs.")
    QTest.keyClicks(text.page.yaml.view, " Add a")
    assert "# What runs. Add a" in text.page.yaml.view.text
    assert text.page.yaml.view.hasFocus()

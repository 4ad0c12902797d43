"""Tests of the form of a new sweep: fields, problems, the file it writes, and what it asks before it closes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QWidget
from pytestqt.qtbot import QtBot

from tests.gui.theme_fixture import without_theme
from torchyard_core.sweeps.search_file import SearchFile, read_search
from torchyard_core.topology.file import TopologyFile, topology_from_text
from torchyard_gui.sweeps.search_form.dialog import SearchDialog
from torchyard_gui.theme.theme import theme
from torchyard_gui.widgets.dialogs import ConfirmationDialog

CONTROL = Qt.KeyboardModifier.ControlModifier
LEFT = Qt.MouseButton.LeftButton


class OpenTopology:
    """The topology of the Topology page."""

    def __init__(self, folder: Path) -> None:
        self.args: list[str] = ["--lr={params.lr}"]
        self.path = folder / "digits.yaml"
        self.is_invalid = False

    def __call__(self) -> TopologyFile | None:
        if self.is_invalid:
            return None
        program = f"program: {{script: a.py, args: {self.args}}}"
        text = f"version: 1\nname: digits\npools: [{{name: w, role: worker, replicas: 2}}]\n{program}\n"
        return topology_from_text(text, str(self.path), self.path.parent)


@pytest.fixture
def topology(tmp_path: Path) -> OpenTopology:
    return OpenTopology(tmp_path)


@pytest.fixture
def dialog(qtbot: QtBot, topology: OpenTopology) -> Iterator[SearchDialog]:
    with without_theme():
        parent = QWidget()
        made = SearchDialog(topology, parent)
    qtbot.addWidget(parent)
    with qtbot.waitActive(made):
        made.start()
    yield made
    made.hide()


def test_it_names_the_cluster_on_which_the_trials_run(dialog: SearchDialog) -> None:
    assert "Slurm" not in dialog.about.text()
    dialog._cluster_for = lambda topology: "hpc"
    dialog.topology_changed()
    assert dialog.about.text().endswith("The trials are jobs of the Slurm cluster hpc.")


def launches(dialog: SearchDialog) -> list[tuple[TopologyFile, SearchFile]]:
    found: list[tuple[TopologyFile, SearchFile]] = []
    dialog.launch_wanted.connect(lambda source, search: found.append((source, search)))
    return found


def question(dialog: SearchDialog, qtbot: QtBot) -> ConfirmationDialog:
    def visible() -> list[ConfirmationDialog]:
        return [box for box in dialog.findChildren(ConfirmationDialog) if box.isVisible()]

    qtbot.waitUntil(lambda: bool(visible()))
    return visible()[0]


def type_into(field: QWidget, text: str) -> None:
    field.setFocus()
    QTest.keyClick(field, Qt.Key.Key_A, CONTROL)
    QTest.keyClicks(field, text)


def test_a_new_form_is_valid_and_launches_what_its_preview_shows(dialog: SearchDialog) -> None:
    launched = launches(dialog)
    row = dialog.form.parameters.rows[0]
    assert (row.name.text(), row.log.isChecked(), dialog.count.text()) == ("lr", True, "")
    type_into(row.high, "0.5")
    type_into(dialog.form.trials, "7")
    QTest.keyClick(dialog.form.trials, Qt.Key.Key_Return)
    assert not launched
    QTest.keyClick(dialog.form.trials, Qt.Key.Key_Return, CONTROL)
    [(source, search)] = launched
    assert source.topology is not None
    assert search.document.text == dialog.preview.text
    assert search.search is not None
    assert (search.search.trials, search.search.parameters["lr"].high) == (7, 0.5)
    dialog.launched()
    dialog.start()
    assert dialog.form.trials.text() == "7"


def test_problems_appear_at_their_fields_while_typing_and_the_launch_goes_to_the_first(dialog: SearchDialog) -> None:
    launched = launches(dialog)
    row = dialog.form.parameters.rows[0]
    type_into(row.low, "2")
    assert row.note.text() == "The range of lr is empty: low 2 is above high 0.1."
    assert row.low.property("invalid")
    assert row.low.accessibleDescription() == row.note.text()
    assert dialog.preview.marked_lines() == [5]
    type_into(dialog.form.trials, "many")
    assert dialog.form.rows["trials",].problem == "Trials must be a whole number from 1 to 100000, not 'many'."
    assert dialog.preview.marked_lines() == [5, 9]
    dialog.form.name.setFocus()
    QTest.mouseClick(dialog.launch_button, LEFT)
    assert not launched
    assert dialog.focusWidget() is row.low
    type_into(row.low, "0.01")
    type_into(dialog.form.trials, "9")
    assert (row.note.isHidden(), dialog.count.text()) == (True, "")


def test_a_new_row_has_no_problem_before_it_is_edited_or_launched(dialog: SearchDialog) -> None:
    QTest.mouseClick(dialog.form.parameters.add, LEFT)
    row = dialog.form.parameters.rows[1]
    assert dialog.focusWidget() is row.name
    assert row.note.isHidden()
    assert (dialog.count.text(), dialog.preview.marked_lines()) == ("", [])
    dialog.launch()
    assert dialog.count.text() != ""
    assert row.note.text() == "The parameter has no name."
    QTest.mouseClick(row.remove, LEFT)
    assert dialog.focusWidget() is dialog.form.parameters.rows[0].name


def test_the_preview_shows_by_a_frame_that_it_has_the_focus(dialog: SearchDialog, qtbot: QtBot) -> None:
    corners = []
    for field in (dialog.form.trials, dialog.preview):
        field.setFocus()
        qtbot.waitUntil(field.hasFocus)
        corners.append(dialog.preview.viewport().grab().toImage().pixelColor(1, 1).name())
    assert corners[1] == theme().color("accent").name() != corners[0]


def test_tab_visits_the_fields_in_their_visual_order_also_in_added_rows(dialog: SearchDialog) -> None:
    dialog.form.parameters.add_row()
    dialog.form.name.setFocus()
    places = []
    for _ in range(24):
        QTest.keyClick(dialog.focusWidget() or dialog, Qt.Key.Key_Tab)
        focused = dialog.focusWidget()
        assert focused is not None
        if not dialog.form.isAncestorOf(focused):
            break
        places.append(focused)
    rows = dialog.form.parameters.rows
    assert places.index(rows[0].remove) + 1 == places.index(rows[1].name)
    tops = [place.mapTo(dialog.form, place.rect().center()).y() for place in places]
    assert tops == sorted(tops)
    assert places[-1] is dialog.form.pruner


def test_missing_arguments_and_parameters_are_added_by_buttons(dialog: SearchDialog, topology: OpenTopology) -> None:
    dialog.arguments_wanted.connect(topology.args.extend)
    topology.args[:] = ["--depth={params.depth}"]
    dialog.topology_changed()
    assert "no argument of the topology contains {params.lr}" in dialog.form.parameters.rows[0].note.text().lower()
    QTest.mouseClick(dialog.fix_arguments, LEFT)
    assert topology.args == ["--depth={params.depth}", "--lr={params.lr}"]
    QTest.mouseClick(dialog.fix_parameters, LEFT)
    assert [row.name.text() for row in dialog.form.parameters.rows] == ["lr", "depth"]
    assert dialog.count.text() == ""
    assert not dialog.fix_arguments.isVisible()
    assert not dialog.fix_parameters.isVisible()


def test_an_added_argument_is_spelled_as_in_the_script(dialog: SearchDialog, topology: OpenTopology) -> None:
    dialog.arguments_wanted.connect(topology.args.extend)
    (topology.path.parent / "a.py").write_text('parser.add_argument("--batch-size", type=int)\n')
    type_into(dialog.form.parameters.rows[0].name, "batch_size")
    assert dialog.fix_arguments.toolTip() == "--batch-size={params.batch_size}"
    QTest.mouseClick(dialog.fix_arguments, LEFT)
    assert topology.args == ["--lr={params.lr}", "--batch-size={params.batch_size}"]


def test_settings_of_the_chosen_sampler_and_pruner_are_shown(dialog: SearchDialog) -> None:
    form = dialog.form
    assert form.settings["sampler", "startup_trials"].isVisible()
    form.sampler.setFocus()
    QTest.keyClick(form.sampler, Qt.Key.Key_Down)
    assert form.sampler.value == "random"
    assert not form.settings["sampler", "startup_trials"].isVisible()
    form.pruner.setFocus()
    QTest.keyClick(form.pruner, Qt.Key.Key_Down)
    type_into(form.settings["pruner", "warmup_steps"], "100")
    assert "sampler: {kind: random}\npruner: {kind: median, warmup_steps: 100}\n" in dialog.preview.text


def test_a_file_is_opened_saved_with_its_comments_and_not_overwritten_unasked(
    dialog: SearchDialog, qtbot: QtBot, tmp_path: Path
) -> None:
    file = tmp_path / "mine.yaml"
    dialog.save_to(file)
    text = "# why\n" + file.read_text()
    file.write_text(text)
    dialog.open_file(file)
    assert dialog.windowTitle().startswith("mine.yaml")
    type_into(dialog.form.trials, "3")
    QTest.keyClick(dialog.form.trials, Qt.Key.Key_S, CONTROL)
    assert file.read_text() == text.replace("trials: 50", "trials: 3")
    assert not dialog.is_changed
    read = read_search(file).search
    assert read is not None
    type_into(dialog.form.trials, "4")
    file.write_text("version: 1  # theirs\n")
    QTest.keyClick(dialog.form.trials, Qt.Key.Key_S, CONTROL)
    box = question(dialog, qtbot)
    QTest.mouseClick(box.yes, LEFT)
    assert "trials: 4" in file.read_text()


@pytest.mark.parametrize(
    ("text", "message"),
    [("version: 1\nparameter: {}\n", "mine.yaml:2"), ("a: [\n", "mine.yaml"), (None, "there is no such file")],
)
def test_a_file_that_is_no_search_is_refused_and_the_form_stays(
    dialog: SearchDialog, tmp_path: Path, text: str | None, message: str
) -> None:
    file = tmp_path / "mine.yaml"
    if text is not None:
        file.write_text(text)
    before = dialog.form.draft
    dialog.open_file(file)
    assert message in dialog.notice.text
    assert dialog.form.draft == before


@pytest.mark.parametrize(
    "close", [lambda dialog: dialog.close(), lambda dialog: QTest.keyClick(dialog, Qt.Key.Key_Escape)]
)
def test_closing_with_changes_asks(dialog: SearchDialog, qtbot: QtBot, close: Callable[[SearchDialog], object]) -> None:
    type_into(dialog.form.metric_name, "accuracy")
    close(dialog)
    box = question(dialog, qtbot)
    QTest.mouseClick(box.no, LEFT)
    assert dialog.isVisible()
    assert not dialog.may_close()
    with qtbot.waitSignal(dialog.discarded):
        QTest.mouseClick(question(dialog, qtbot).yes, LEFT)
    type_into(dialog.form.metric_name, "auc")
    close(dialog)
    QTest.mouseClick(question(dialog, qtbot).yes, LEFT)
    assert not dialog.isVisible()
    dialog.start()
    assert dialog.form.metric_name.text() == "loss"
    close(dialog)
    assert not dialog.isVisible()
    QApplication.processEvents()


def test_a_topology_that_cannot_be_launched_is_named(dialog: SearchDialog, topology: OpenTopology) -> None:
    launched = launches(dialog)
    topology.is_invalid = True
    dialog.launch()
    assert dialog.notice.text == "The text of the topology has errors. Correct it on the Topology page first."
    assert not launched

"""Tests that the inspector edits one or several selected replicas, and shows problems beside its fields."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QHelpEvent
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QFileDialog, QMenu, QToolTip
from pytestqt.qtbot import QtBot

from tests.gui.topology.conftest import DIGITS
from tests.gui.topology.page_driver import CONTROL, Driver
from torchyard_core.topology.model import Launcher, ReductionOrder, Role, Strategy, StrategyKind, Wire
from torchyard_core.topology.strategies.link_load import ExchangeFacts
from torchyard_core.topology.strategies.registry import all_specs, spec_of
from torchyard_gui.topology.inspector.fields import ChoiceField, LineField, LinesField, PairsField, PathField
from torchyard_gui.widgets.form_row import FormRow


def test_it_says_what_is_selected(digits: Driver) -> None:
    inspector = digits.page.inspector
    assert inspector.title.text() == "Topology"
    assert inspector.subtitle.text() == "5 replicas in 2 pools"
    digits.select("worker-1", "worker-2")
    assert inspector.title.text() == "2 workers selected"
    assert inspector.subtitle.text().startswith("pool “workers” · ")
    digits.select("chief-0")
    assert inspector.title.text() == "Chief 0"
    digits.click("worker-0", CONTROL)
    assert inspector.subtitle.text() == "2 pools"


def test_many_pools_are_edited_at_once(digits: Driver) -> None:
    digits.select("chief-0", "worker-1")
    needs = digits.page.inspector.pools.needs
    digits.fill(needs, "cpus", "2.5")
    assert [pool.cpus for pool in digits.value.pools] == [2.5, 2.5]
    assert digits.undo_text() == "Change CPUs of 2 pools"


def test_values_that_differ_are_said_to(digits: Driver) -> None:
    digits.select("chief-0", "worker-1")
    field = digits.page.inspector.pools.pool.field("replicas")
    assert (field.text(), field.placeholderText()) == ("", "several values")  # type: ignore[union-attr]  # This key has a line field.
    assert not digits.page.inspector.pools.pool.rows["name"].isVisible()


def test_what_cannot_be_is_refused_beside_the_field(digits: Driver) -> None:
    digits.select("worker-1")
    pool = digits.page.inspector.pools.pool
    for text, sentence in (
        ("0", "replicas must be a whole number from 1 to 10000, not 0"),
        ("many", "replicas must be a whole number from 1 to 10000, not 'many'"),
        ("", "replicas must be a whole number from 1 to 10000, but is empty"),
    ):
        digits.fill(pool, "replicas", text)
        assert pool.rows["replicas"].note.text() == sentence
        assert pool.field("replicas").property("invalid") is True
    assert digits.counts()["workers"] == 4
    digits.fill(pool, "replicas", "3")
    assert pool.field("replicas").property("invalid") is False
    digits.select("chief-0")
    digits.fill(pool, "replicas", "2")
    assert pool.rows["replicas"].note.text() == "a run has one chief"


def test_the_arrows_step_and_are_one_undo(digits: Driver) -> None:
    digits.select("worker-1")
    field = digits.page.inspector.pools.pool.field("replicas")
    field.setFocus()
    for key in (Qt.Key.Key_Up, Qt.Key.Key_Up, Qt.Key.Key_Up, Qt.Key.Key_Down):
        QTest.keyClick(field, key)
    assert digits.counts()["workers"] == 6
    assert digits.page.editor.stack.count() == 1
    digits.on_canvas()
    digits.keys(Qt.Key.Key_Z, CONTROL)
    assert digits.counts()["workers"] == 4


@pytest.mark.parametrize(
    ("key", "typed", "value"),
    [
        ("notify", "./notify.sh", "./notify.sh"),
        ("checkpoint_dir", "/shared/digits", "/shared/digits"),
        ("checkpoint_every_s", "90", 90.0),
        ("max_restarts", "5", 5),
        ("host_wait_s", "30", 30.0),
    ],
)
def test_what_survives_a_failure_is_typed_and_taken_back(digits: Driver, key: str, typed: str, value: object) -> None:
    before = digits.value
    program = digits.page.inspector.program
    (group,) = (group for group in program.groups if key in group.rows)
    assert group.field(key).isVisible()
    assert group.field(key).toolTip()
    digits.fill(group, key, typed)
    assert getattr(digits.value.program, key) == value
    assert digits.page.editor.stack.count() == 1
    digits.on_canvas()
    digits.keys(Qt.Key.Key_Z, CONTROL)
    assert digits.value == before
    assert digits.page.document.text == DIGITS


def test_spares_are_switched_off_and_on(digits: Driver) -> None:
    failures = digits.page.inspector.program.failures
    field = failures.field("warm_spares")
    assert field.currentText() == "one per rank"
    digits.pick(field, "none")
    assert digits.value.program.warm_spares is False
    assert "warm_spares: false" in digits.page.document.text
    digits.pick(field, "one per rank")
    assert digits.value.program.warm_spares is True


def test_the_least_replicas_are_set_for_many_pools_at_once(digits: Driver) -> None:
    digits.select("chief-0", "worker-1")
    pool = digits.page.inspector.pools.pool
    digits.fill(pool, "min_replicas", "1")
    assert [there.min_replicas for there in digits.value.pools] == [1, 1]
    assert digits.undo_text() == "Change Minimum replicas of 2 pools"
    digits.select("worker-1")
    digits.fill(pool, "min_replicas", "9")
    digits.page.checks.now()
    assert pool.rows["min_replicas"].note.text() == "min_replicas is 9, more than the 4 replicas"
    digits.fill(pool, "min_replicas", "")
    assert digits.value.pools[1].min_replicas is None


@pytest.mark.parametrize(("size", "hosts"), [((1280, 800), "gpu-a +3"), ((1440, 900), "gpu-a, gpu-b +2")])
def test_what_is_too_long_for_its_field_ends_with_a_mark_and_is_told_whole(
    digits: Driver, size: tuple[int, int], hosts: str
) -> None:
    digits.window.resize(*size)
    digits.select("worker-1")
    digits.page.fields.reveal()
    pools = digits.page.inspector.pools
    digits.fill(pools.pool, "hosts", "gpu-a, gpu-b, gpu-c, cpu-d")
    digits.fill(pools.pool, "machine", "a2-ultragpu-8g-with-much-memory")
    digits.on_canvas()
    machine = pools.pool.field("machine")
    assert isinstance(machine, LineField)
    assert pools.hosts.shown_text == hosts
    assert machine.shown_text.endswith("…")
    at = machine.rect().center()
    QApplication.sendEvent(machine, QHelpEvent(QHelpEvent.Type.ToolTip, at, machine.mapToGlobal(at)))
    assert QToolTip.text().startswith("a2-ultragpu-8g-with-much-memory\n")
    QToolTip.hideText()
    machine.setFocus()
    assert machine.shown_text == "a2-ultragpu-8g-with-much-memory"


def test_a_long_line_of_a_list_is_broken_not_cut(digits: Driver) -> None:
    digits.select("worker-1")
    field = digits.page.inspector.pools.runs_with.field("env")
    assert isinstance(field, LinesField)
    before = field.height()
    digits.fill(digits.page.inspector.pools.runs_with, "env", "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True")
    assert field.height() > before
    assert field.horizontalScrollBar().maximum() == 0


def test_a_list_that_gets_narrower_shows_all_its_lines(qtbot: QtBot) -> None:
    field = PairsField()
    qtbot.addWidget(field)
    field.set_values([{"OMP_NUM_THREADS": "1"}])
    field.resize(400, field.height())
    field.show()
    wide = field.height()
    field.resize(138, field.height())
    assert field.height() > wide
    assert not field.verticalScrollBar().isVisible()


def test_leaving_a_field_commits_it(digits: Driver) -> None:
    digits.select("worker-1")
    args = digits.page.inspector.pools.runs_with
    field = args.field("args")
    field.setFocus()
    QTest.keyClicks(field, "--lr 1e-3 'a b'")
    digits.on_canvas()
    assert digits.value.pools[1].args == ("--lr", "1e-3", "a b")
    lines = args.field("env")
    lines.setFocus()
    QTest.keyClicks(lines, "A=1")
    QTest.keyClick(lines, Qt.Key.Key_Return)
    QTest.keyClicks(lines, "B = x=y")
    digits.on_canvas()
    assert digits.value.pools[1].env == {"A": "1", "B": " x=y"}


def test_text_that_is_no_value_is_told(digits: Driver) -> None:
    digits.select("worker-1")
    group = digits.page.inspector.pools.runs_with
    digits.fill(group, "args", "--x 'y")
    assert group.rows["args"].note.text() == "a quote in this line is never closed"
    digits.fill(group, "env", "A")
    assert group.rows["env"].note.text() == "write each line as NAME=value"
    assert digits.page.editor.stack.count() == 0


def test_hosts_are_chosen_from_the_fleet(digits: Driver) -> None:
    digits.select("worker-1")
    field = digits.page.inspector.pools.hosts
    field.setFocus()
    QTest.keyClick(field, Qt.Key.Key_Down, Qt.KeyboardModifier.AltModifier)
    menu = QApplication.activePopupWidget()
    assert isinstance(menu, QMenu)
    assert [action.text() for action in menu.actions()] == ["gpu-a", "gpu-b", "gpu-c", "cpu-d"]
    QTest.keyClick(menu, Qt.Key.Key_Down)
    QTest.keyClick(menu, Qt.Key.Key_Down)
    QTest.keyClick(menu, Qt.Key.Key_Return)
    assert digits.value.pools[1].hosts == ("gpu-b",)


def test_a_role_is_changed_and_one_that_cannot_be_is_not(digits: Driver) -> None:
    digits.select("worker-1")
    pool = digits.page.inspector.pools.pool
    roles = pool.field("role")
    assert isinstance(roles, ChoiceField)
    digits.pick_from_popup(roles, "Chief")
    assert pool.rows["role"].note.text() == "a run has one chief"
    assert roles.currentText() == "Worker"
    digits.pick_from_popup(roles, "Evaluator")
    assert digits.value.pools[1].role is Role.EVALUATOR


def test_a_pin_is_typed_set_and_freed(digits: Driver) -> None:
    place = digits.page.inspector.place
    digits.select("worker-1")
    assert "Placed by the planner." in place._where.text()
    place.pin.setFocus()
    QTest.keyClicks(place.pin, "gpu-b:2")
    QTest.keyClick(place.pin, Qt.Key.Key_Return)
    assert digits.where("worker-1") == "gpu-b:2"
    QTest.mouseClick(place.unpin, Qt.MouseButton.LeftButton)
    assert digits.value.pins == {}
    where = digits.where("worker-1")
    QTest.mouseClick(place.pin_here, Qt.MouseButton.LeftButton)
    assert digits.value.pins == {"worker-1": where}
    assert "Pinned." in place._where.text()


def test_a_pin_that_cannot_be_is_told_beside_it(digits: Driver) -> None:
    place = digits.page.inspector.place
    digits.select("worker-1")
    place.pin.setFocus()
    QTest.keyClicks(place.pin, "gpu-b:9")
    QTest.keyClick(place.pin, Qt.Key.Key_Return)
    digits.page.checks.now()
    assert place.row.note.text() == "gpu-b has no GPU 9; it has 4 GPUs"


def test_the_program_shows_the_keys_of_its_launcher(digits: Driver) -> None:
    program = digits.page.inspector.program
    assert program.program.rows["script"].isVisible()
    assert not program.program.rows["command"].isVisible()
    digits.pick(program.program.field("launcher"), "any command")  # type: ignore[arg-type]  # This key has a choice field.
    assert digits.value.program.launcher is Launcher.COMMAND
    assert program.program.rows["command"].isVisible()
    digits.page.checks.now()
    assert program.program.rows["command"].note.text().startswith("launcher command needs “command”")
    # The script is still set, but invalid with the other launcher. Its field therefore stays visible and gives the
    # reason.
    assert "is for launcher torch" in program.program.rows["script"].note.text()


def test_an_empty_working_folder_sends_nothing(digits: Driver) -> None:
    digits.fill(digits.page.inspector.program.around, "workdir", "")
    assert digits.value.program.workdir is None


def test_the_strategy_is_chosen_with_a_sentence(digits: Driver) -> None:
    strategy = digits.page.inspector.strategy
    titles = [strategy.kind.itemText(row) for row in range(strategy.kind.count())]
    assert titles == [spec.title for spec in all_specs()]
    digits.pick(strategy.kind, "None")
    assert digits.value.strategy.kind == "none"
    assert digits.page.bar.strategy.currentText() == "None"
    assert strategy._sentence.text().startswith("The script synchronises its parameters itself")


@pytest.mark.parametrize("kind", list(StrategyKind))
def test_a_strategys_settings_are_there_with_a_sentence_each_and_no_others(digits: Driver, kind: StrategyKind) -> None:
    digits.page.editor.set_strategy("kind", kind.value, "strategy")
    rows = digits.page.inspector.strategy.group.rows
    shown = {key for key, row in rows.items() if row.isVisible()}
    assert shown == {"kind", *spec_of(kind).settings}
    assert all(rows[key].note.text() for key in shown - {"kind"})
    ignored = [problem for problem in digits.page.problems.problems if problem.code == "strategy-ignores"]
    assert ignored == []


def test_every_setting_is_some_strategys() -> None:
    assert {key for spec in all_specs() for key in spec.settings} | {"kind"} == set(Strategy.model_fields)


def test_a_setting_is_typed_or_chosen_and_taken_back(digits: Driver) -> None:
    digits.page.editor.set_strategy("kind", "downpour", "strategy")
    group = digits.page.inspector.strategy.group
    digits.fill(group, "max_staleness", "3")
    order = group.field("reduction_order")
    assert isinstance(order, ChoiceField)
    digits.pick(order, "by arrival")
    assert digits.value.strategy.max_staleness == 3
    assert digits.value.strategy.reduction_order is ReductionOrder.ARRIVAL
    digits.on_canvas()
    digits.keys(Qt.Key.Key_Z, CONTROL)
    assert digits.value.strategy.reduction_order is ReductionOrder.RANK


def test_the_wire_of_diloco_and_its_error_feedback_are_chosen(digits: Driver) -> None:
    digits.page.editor.set_strategy("kind", "diloco", "strategy")
    group = digits.page.inspector.strategy.group
    digits.fill(group, "fragments", "2")
    digits.fill(group, "mixing", "0.5")
    for key, text in (("wire", "int8"), ("error_feedback", "no")):
        field = group.field(key)
        assert isinstance(field, ChoiceField)
        digits.pick(field, text)
    strategy = digits.value.strategy
    assert (strategy.fragments, strategy.mixing, strategy.wire, strategy.error_feedback) == (2, 0.5, Wire.INT8, False)
    digits.pick(group.field("error_feedback"), "yes")
    assert digits.value.strategy.error_feedback


def test_what_the_exchange_costs_is_worked_out_for_the_topology(digits: Driver) -> None:
    sums = digits.page.inspector.strategy.sums
    explained = "M is the size of the gradients, B the bandwidth of a host's link."
    assert sums.text().startswith(f"5 trainers around a ring: a step's exchange takes about 1.6·M/B. {explained}")
    digits.page.editor.remove(["chief-0"])
    digits.page.editor.set_strategy("kind", "reduction_server", "strategy")
    assert not sums.isVisible(), "there are no reducers yet"
    digits.page.editor.add(Role.REDUCER, 2)
    digits.page.editor.select(())
    assert sums.text().startswith(
        "4 trainers, 2 reducers: mixed, about 1.2·M/B; the ring takes 1.5·M/B, reducers alone 2·M/B. "
        "Reducers alone beat the ring from 3 on. M is"
    )


def test_the_exchange_is_a_time_once_gradients_and_links_are_known(digits: Driver) -> None:
    def known(name: str, hosts: Collection[str]) -> ExchangeFacts:
        assert set(hosts) == set(digits.page.current_plan.hosts)
        return ExchangeFacts(250e6, 1.25e9) if name == "digits" else ExchangeFacts()

    digits.page.exchange_facts = known
    digits.page.tidy()
    assert digits.page.inspector.strategy.sums.text() == (
        "5 trainers around a ring: a step's exchange takes about 320 ms. "
        "For 250 MB of gradients, as in the last run, and links of 10.0 Gbit/s."
    )
    digits.page.editor.set_name("another")
    assert "1.6·M/B" in digits.page.inspector.strategy.sums.text()


# Tests of paths


@pytest.mark.parametrize(
    ("key", "chosen", "written"),
    [("script", "code/train.py", "train.py"), ("workdir", "code", "code"), ("workdir", "/", "/"), ("workdir", "", ".")],
)
def test_a_chosen_path_is_written_relative_to_its_base(
    digits: Driver, digits_file: Path, key: str, chosen: str, written: str
) -> None:
    folder = digits_file.parent
    (folder / "code").mkdir()
    (folder / "code" / "train.py").write_text("")
    if key == "script":
        digits.page.editor.set_program("workdir", "code", "working folder")
    group = digits.page.inspector.program.program if key == "script" else digits.page.inspector.program.around
    field = group.field(key)
    assert isinstance(field, PathField)
    field.setFocus()
    QTest.keyClick(field, Qt.Key.Key_Down, Qt.KeyboardModifier.AltModifier)
    (dialog,) = field.findChildren(QFileDialog)
    assert Path(dialog.directory().absolutePath()) in (folder, folder / "code")
    dialog.fileSelected.emit(str(folder / chosen))
    dialog.reject()
    assert getattr(digits.value.program, key) == written


def test_rows_have_their_height_at_once_when_a_change_adds_rows(digits: Driver) -> None:
    inspector = digits.page.inspector
    digits.window.resize(1440, 900)
    digits.page.editor.select([])
    for kind in ("downpour", "diloco", "all_reduce", "sandblaster"):
        digits.page.editor.set_strategy("kind", kind, "strategy")
        rows = [row for row in inspector.findChildren(FormRow) if row.isVisible()]
        assert len(rows) > 10
        squeezed = [row.name.text() for row in rows if row.height() < row.minimumSizeHint().height()]
        assert squeezed == [], kind

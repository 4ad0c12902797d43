"""Tests of editing a topology on the canvas with real events: the palette, drags of chips, and the clipboard."""

from __future__ import annotations

from pathlib import Path

import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QGuiApplication
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication

from tests.core.examples import host
from tests.gui.topology.conftest import MakeDriver
from tests.gui.topology.page_driver import CONTROL, LEFT, PLAIN, SHIFT, Driver
from torchyard_core.topology.file import read_topology

# Tests of adding replicas


def test_a_click_on_a_role_adds_one(empty: Driver) -> None:
    empty.choose(empty.page.palette_.roles, "worker")
    empty.choose(empty.page.palette_.roles, "worker")
    assert empty.counts() == {"workers": 2}
    assert empty.value.pools[0].gpus == 1  # The hosts have GPUs, so each replica of the new pool requests one.
    assert empty.page.editor.selection == ("worker-1",)


def test_enter_on_a_role_adds_one(empty: Driver) -> None:
    roles = empty.page.palette_.roles
    roles.setFocus()
    roles.setCurrentItem(roles.row_of("evaluator"))
    empty.keys(Qt.Key.Key_Return)
    assert empty.counts() == {"eval": 1}


def test_shift_asks_how_many(empty: Driver) -> None:
    empty.choose(empty.page.palette_.roles, "worker", SHIFT)
    popup = empty.page.palette_.popup
    assert popup.isVisible()
    QTest.keyClicks(popup.number, "12")
    QTest.keyClick(popup.number, Qt.Key.Key_Return)
    assert not popup.isVisible()
    assert empty.counts() == {"workers": 12}
    assert empty.page.editor.stack.count() == 1


def test_escape_adds_none(empty: Driver) -> None:
    empty.choose(empty.page.palette_.roles, "worker", SHIFT)
    QTest.keyClick(empty.page.palette_.popup, Qt.Key.Key_Escape)
    assert not empty.page.palette_.popup.isVisible()
    assert empty.counts() == {}


def test_a_few_letters_and_enter_add(empty: Driver) -> None:
    empty.on_canvas()
    empty.keys(Qt.Key.Key_A)
    assert QApplication.focusWidget() is empty.page.palette_.search
    empty.type("par")
    assert [row.isHidden() for row in map(empty.page.palette_.roles.item, range(5))] == [True, True, False, True, True]
    empty.keys(Qt.Key.Key_Return)
    empty.type("3 wor")
    empty.keys(Qt.Key.Key_Return)
    empty.type("gpu-b")
    empty.keys(Qt.Key.Key_Return)
    empty.type("nothing like it")
    empty.keys(Qt.Key.Key_Return)
    assert empty.counts() == {"servers": 1, "workers": 3}
    assert "gpu-b" in empty.page.scene.hosts


def test_a_second_chief_is_refused_with_a_sentence(empty: Driver) -> None:
    empty.choose(empty.page.palette_.roles, "chief")
    empty.choose(empty.page.palette_.roles, "chief")
    assert empty.counts() == {"chief": 1}
    assert empty.page._toast.label.text() == "a run has one chief"
    empty.page._toast.hide()


def test_a_role_dropped_on_a_host_is_pinned_there(empty: Driver) -> None:
    empty.choose(empty.page.palette_.hosts, "gpu-b")
    assert empty.drop(empty.page.palette_.roles, "worker", "gpu-b")
    assert empty.value.pins == {"worker-0": "gpu-b"}
    assert empty.where("worker-0").startswith("gpu-b:")


def test_a_role_dropped_beside_the_racks_goes_where_the_planner_puts_it(empty: Driver) -> None:
    assert empty.drop(empty.page.palette_.roles, "worker", "")
    assert empty.value.pins == {}
    assert empty.counts() == {"workers": 1}


def test_a_host_dropped_on_the_canvas_is_shown_and_can_be_taken_back(empty: Driver) -> None:
    assert empty.drop(empty.page.palette_.hosts, "gpu-c", "")
    assert empty.page.scene.hosts == ["gpu-c"]
    empty.keys(Qt.Key.Key_Z, CONTROL)
    assert empty.page.scene.hosts == []


def test_the_palette_counts_replicas_and_free_gpus(digits: Driver) -> None:
    role = int(Qt.ItemDataRole.AccessibleTextRole)
    roles = [digits.page.palette_.roles.item(row).data(role) for row in range(3)]
    assert roles == ["Chief, 1", "Worker, 4", "Parameter server, none"]
    assert digits.page.palette_.presets.item(0).data(role) == "All-reduce"
    palette = digits.page.palette_
    told = {
        rows.item(row).text(): rows.item(row).data(Qt.ItemDataRole.UserRole + 1)
        for rows in (palette.roles, palette.hosts)
        for row in range(rows.count())
    }
    assert told["Worker"] == "4"
    assert told["Reducer"] == "–"
    assert told["gpu-b"] in ("3 of 4 free", "2 of 4 free")
    assert told["cpu-d"] == "CPU only"


# Tests of drags


def test_a_chip_carried_to_a_slot_is_pinned_to_it(digits: Driver) -> None:
    digits.carry("worker-1", "gpu-b:1") if "gpu-b" in digits.page.scene.hosts else digits.carry("worker-1", "gpu-a:3")
    assert len(digits.value.pins) == 1
    target = digits.value.pins["worker-1"]
    assert digits.where("worker-1") == target


def test_a_chip_carried_to_another_host_is_pinned_there(digits: Driver) -> None:
    digits.choose(digits.page.palette_.hosts, "gpu-c")
    digits.carry("worker-2", "gpu-c:1")
    assert digits.value.pins == {"worker-2": "gpu-c:1"}
    digits.carry("worker-3", "gpu-c")
    assert digits.value.pins["worker-3"] == "gpu-c"


def test_several_selected_chips_are_carried_together(digits: Driver) -> None:
    digits.choose(digits.page.palette_.hosts, "gpu-c")
    digits.select("worker-1", "worker-2")
    digits.carry("worker-1", "gpu-c:0")
    assert digits.value.pins == {"worker-1": "gpu-c:0", "worker-2": "gpu-c:1"}
    assert digits.undo_text() == "Put 2 workers on gpu-c:0"


def test_a_chip_carried_off_the_racks_is_left_to_the_planner(digits: Driver) -> None:
    digits.page.editor.pin(["worker-1"], "gpu-a:3")
    digits.carry("worker-1", "")
    assert digits.value.pins == {}


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("gpu-b:3", "gpu-b:3 is used by kim"),
        ("cpu-d", "on cpu-d, where it is pinned, worker-1 needs 1 GPU"),
    ],
)
def test_what_does_not_fit_says_why_at_the_cursor_and_stays(digits: Driver, target: str, reason: str) -> None:
    digits.page.editor.pin(["chief-0"], "gpu-c:0")
    for name in ("gpu-b", "cpu-d"):
        digits.page.editor.show_host(name)
    before = digits.value
    assert digits.carry("worker-1", target).startswith(reason)
    assert digits.value == before


def test_escape_calls_a_drag_off(digits: Driver) -> None:
    digits.carry("worker-1", "gpu-a:3", drop=False)
    digits.keys(Qt.Key.Key_Escape)
    QTest.mouseRelease(digits.page.view.viewport(), LEFT, PLAIN, digits.slot("gpu-a:3"))
    assert digits.value.pins == {}


# Tests of selection and clipboard


def test_a_rubber_band_and_control_choose_many(digits: Driver) -> None:
    viewport = digits.page.view.viewport()
    rect = digits.page.scene.rect_of_rack("gpu-a")
    start = digits.page.view.mapFromScene(rect.topLeft()) - digits.page.view.mapFromScene(rect.topLeft()) / 8
    end = digits.page.view.mapFromScene(rect.bottomRight())
    QTest.mousePress(viewport, LEFT, PLAIN, start)
    QTest.mouseMove(viewport, (start + end) / 2)
    QTest.mouseMove(viewport, end)
    QTest.mouseRelease(viewport, LEFT, PLAIN, end)
    on_host = {planned.name for planned in digits.page.current_plan.on_host("gpu-a")}
    assert set(digits.page.editor.selection) == on_host
    digits.click("chief-0", CONTROL)
    assert set(digits.page.editor.selection) == on_host - {"chief-0"}
    digits.keys(Qt.Key.Key_A, CONTROL)
    assert len(digits.page.editor.selection) == 5


def test_letters_find_and_select_replicas(digits: Driver) -> None:
    digits.page.editor.pin(["worker-2"], "gpu-b")
    digits.select("chief-0")
    finder = digits.page.finder
    for typed, found, said in (
        ("workers", ("worker-0", "worker-1", "worker-2", "worker-3"), "4 found"),
        ("work is:pinned", ("worker-2",), "1 found"),
        ("gpu-b", ("worker-2",), "1 found"),
        ("is:invalid", (), "0 found"),
    ):
        digits.on_canvas()
        digits.keys(Qt.Key.Key_F, CONTROL)
        assert finder.field.hasFocus()
        digits.type(typed)
        assert (digits.page.editor.selection, finder.found.text()) == (found, said)
        digits.keys(Qt.Key.Key_Escape)
        assert finder.isHidden()
        assert digits.page.editor.selection == ("chief-0",)
    digits.keys(Qt.Key.Key_F, CONTROL)
    digits.type("worker-1")
    digits.keys(Qt.Key.Key_Return)
    assert digits.page.editor.selection == ("worker-1",)
    assert QApplication.focusWidget() is digits.page.view
    digits.page.editor.set_pools([1], "gpus", 8, "GPUs")
    digits.page.checks.now()
    digits.keys(Qt.Key.Key_F, CONTROL)
    digits.type("is:invalid")
    assert len(digits.page.editor.selection) == 4


def test_copy_and_paste_across_pages(digits: Driver, make_driver: MakeDriver) -> None:
    digits.select("worker-1", "worker-3")
    digits.keys(Qt.Key.Key_C, CONTROL)
    other = make_driver()
    other.on_canvas()
    other.page.edits.paste.trigger()
    assert other.counts() == {"workers": 2}
    assert other.page.editor.selection == ("worker-0", "worker-1")


def test_pasting_something_else_says_so(digits: Driver) -> None:
    QGuiApplication.clipboard().setText("hello")
    digits.on_canvas()
    digits.keys(Qt.Key.Key_V, CONTROL)
    assert digits.page._toast.label.text() == "The clipboard holds no replicas."
    digits.page._toast.hide()
    assert digits.page.editor.stack.count() == 0


def test_the_menu_of_a_chip_does_what_it_says(digits: Driver) -> None:
    digits.page.editor.pin(["worker-2"], "gpu-a:3")
    digits.select("worker-2")
    digits.page._context(digits.page.mapToGlobal(digits.page.rect().center()))
    menu = QApplication.activePopupWidget()
    assert menu is not None
    texts = [action.text() for action in menu.actions() if action.isEnabled()]
    assert "U&npin" in texts
    for _ in range(texts.index("U&npin") + 1):
        QTest.keyClick(menu, Qt.Key.Key_Down)
    QTest.keyClick(menu, Qt.Key.Key_Return)
    assert digits.value.pins == {}


# Tests of a complete topology


def test_the_example_drawn_from_an_empty_canvas(make_driver: MakeDriver, tmp_path: Path) -> None:
    """Draws examples/digits/three-hosts.yaml with mouse and keyboard."""
    (tmp_path / "train.py").write_text("")
    driver = make_driver([host("gpu-a"), host("gpu-b"), host("gpu-c")])
    page, pools = driver.page, driver.page.inspector.pools.pool
    driver.choose(page.palette_.roles, "chief")
    driver.fill(pools, "hosts", "gpu-a")
    page.palette_.search.setFocus()
    driver.type("2 worker")
    driver.keys(Qt.Key.Key_Return)
    driver.fill(pools, "hosts", "gpu-b, gpu-c")
    driver.pick(pools.field("placement"), "spread")  # type: ignore[arg-type]  # This key has a choice field.
    driver.on_canvas()
    driver.keys(Qt.Key.Key_A, CONTROL | SHIFT)
    driver.fill(page.inspector.topology, "name", "digits-three-hosts")
    driver.fill(page.inspector.program.program, "script", "train.py")
    driver.fill(page.inspector.program.program, "env", "OMP_NUM_THREADS=1")
    driver.pick(page.bar.strategy, "All-reduce")
    assert {name: driver.where(name) for name in ("chief-0", "worker-0", "worker-1")} == {
        "chief-0": "gpu-a",
        "worker-0": "gpu-b",
        "worker-1": "gpu-c",
    }
    page.files.save_to(tmp_path / "three.yaml")
    drawn = read_topology(tmp_path / "three.yaml")
    assert drawn.check(driver.fleet.facts()) == ()
    example = Path(__file__).parents[3] / "examples" / "digits" / "three-hosts.yaml"
    assert drawn.topology == read_topology(example).topology

"""Tests of where problems are shown (in the dock, beside the field, on the chip and at the line) and of their effect on
*Launch*.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QPushButton, QScrollArea

from tests.core.examples import host
from tests.gui.topology.conftest import DIGITS, MakeDriver
from tests.gui.topology.page_driver import CONTROL, LEFT, PLAIN, Driver
from torchyard_core.problems import Problem
from torchyard_core.topology.file import TopologyFile
from torchyard_core.topology.host_facts import HostFacts


def test_problems_come_and_go_with_the_edits(digits: Driver) -> None:
    assert digits.codes() == []
    digits.fill(digits.page.inspector.program.program, "script", "trian.py")
    digits.wait_until(lambda: len(digits.page.problems.problems) == 1)
    note = digits.page.inspector.program.program.rows["script"].note.text()
    assert note == "the script trian.py is not in the working folder; did you mean “train.py”?"
    assert note in digits.page.problems.line.text.text()
    digits.on_canvas()
    digits.keys(Qt.Key.Key_Z, CONTROL)
    digits.wait_until(lambda: digits.page.problems.problems == ())
    assert digits.page.inspector.program.program.rows["script"].note.text() == ""


def test_a_click_on_a_problem_jumps_to_its_field(digits: Driver) -> None:
    digits.page.editor.set_pools([1], "env", {"RANK": "1"}, "env")
    digits.page.checks.now()
    dock = digits.page.problems
    QTest.mouseClick(dock.line, LEFT, PLAIN)
    assert dock.is_open
    QTest.mouseClick(dock.table.viewport(), LEFT, PLAIN, dock.table.visualItemRect(dock.table.item(0, 0)).center())
    assert digits.page.editor.selection == ("worker-0", "worker-1", "worker-2", "worker-3")
    assert QApplication.focusWidget() is digits.page.inspector.pools.runs_with.field("env")


def test_the_key_for_the_next_problem_goes_round(digits: Driver) -> None:
    digits.page.editor.set_pools([1], "env", {"RANK": "1"}, "env")
    digits.page.editor.pin_exactly("worker-1", "gpu-z")
    digits.page.checks.now()
    seen = []
    for _ in range(len(digits.page.problems.problems) + 1):
        digits.on_canvas()
        digits.keys(Qt.Key.Key_F8)
        seen.append(digits.page.problems.table.currentRow())
    assert seen == [*range(len(seen) - 1), 0]


def test_chips_carry_the_same_text(digits: Driver) -> None:
    digits.page.editor.pin_exactly("worker-1", "gpu-z")
    digits.page.checks.now()
    assert "gpu-z" in digits.page.scene.described("worker-1")
    assert "gpu-z" not in digits.page.scene.described("worker-2")


def test_what_fits_nowhere_is_told(digits: Driver) -> None:
    digits.select("worker-1")
    digits.fill(digits.page.inspector.pools.pool, "gpus", "8")
    digits.page.checks.now()
    assert [problem.path for problem in digits.page.problems.problems] == ["pools.workers"]
    assert digits.page.problems.problems[0].message.startswith("worker-0 to worker-3 each need 8 GPUs")


def test_hosts_that_come_change_what_fits(digits: Driver) -> None:
    digits.page.editor.set_pools([1], "replicas", 20, "replicas")
    assert digits.codes() == ["no-room"]
    # The problem concerns only the replicas that fit on no host, so only these are marked and selected.
    scene = digits.page.scene
    lost = scene.unplaced
    assert 0 < len(lost) < 20
    assert [name for name in scene.names if "each need 1 GPU" in scene.described(name)] == lost
    digits.page.jump_to(digits.page.problems.problems[0])
    assert list(digits.page.editor.selection) == lost
    digits.fleet.hosts.append(host("gpu-x", 16))
    digits.fleet.facts_changed.emit()
    assert digits.codes() == []


# Tests of jumping to the location of a problem


def unchecked(name: str) -> HostFacts:
    return HostFacts(name=name, address=f"{name}.example")


def jump(driver: Driver, code: str) -> None:
    """Selects the problem with this code and presses Enter."""
    driver.page.checks.now()
    dock = driver.page.problems
    dock.set_open(True)
    row = next(row for row, problem in enumerate(dock.problems) if problem.code == code)
    driver.on_canvas()
    dock.table.setCurrentCell(row, 0)
    dock.table.setFocus()
    driver.keys(Qt.Key.Key_Return)


def test_a_host_that_was_never_checked_is_jumped_to_on_the_canvas(make_driver: MakeDriver) -> None:
    driver = make_driver([unchecked("gpu-z")])
    driver.choose(driver.page.palette_.roles, "worker")
    jump(driver, "unchecked-host")
    assert driver.page.scene.mark.pointed_out == "gpu-z"
    (problem,) = (problem for problem in driver.page.problems.problems if problem.code == "unchecked-host")
    assert problem.path == "hosts.gpu-z"


def test_a_host_without_a_rack_is_jumped_to_in_the_palette(digits: Driver) -> None:
    digits.page.jump_to(Problem("warning", "unchecked-host", "never checked", path="hosts.cpu-d"))
    assert QApplication.focusWidget() is digits.page.palette_.hosts
    assert digits.page.palette_.hosts.current_key() == "cpu-d"


def test_what_is_pointed_out_ends_with_a_drag(digits: Driver) -> None:
    assert digits.page.view.show_rack("gpu-a")
    assert digits.page.scene.mark.pointed_out == "gpu-a"
    digits.carry("worker-1", "gpu-a:3", drop=False)
    assert digits.page.scene.mark.pointed_out == ""
    digits.keys(Qt.Key.Key_Escape)


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        ("script: train.py", "notify: ./missing.sh\n  script: train.py", "notify-missing"),
        ("script: train.py", "env: {RANK: '1'}\n  script: train.py", "reserved-variable"),
        ("script: train.py", "python: x", "no-program"),
        ("script: train.py", "script: trian.py", "script-missing"),
        ("name: digits ", "name: ' digits' ", "bad-name"),
        ("name: workers, role: worker", "name: chief, role: worker", "duplicate-pool"),
        ("role: worker, replicas: 4", "role: worker, replicas: 4, min_replicas: 9", "min-replicas"),
        ("role: worker, replicas: 4, gpus: 1", "role: worker, replicas: 4, gpu_model: x", "gpu-wish"),
        ("role: worker, replicas: 4", "role: worker, replicas: 4, hosts: [gpu-y]", "unknown-host"),
        ("# What runs.", "pins: {worker-9: gpu-a}", "unknown-replica"),
        ("# What runs.", "pins: {worker-1: 'gpu-a:x'}", "bad-pin"),
        ("# What runs.", "pins: {worker-1: 'gpu-a:9'}", "unknown-gpu"),
        ("kind: all_reduce", "kind: downpour", "strategy-needs"),
        ("# The first of all.", "- {name: sums, role: reducer, replicas: 1}", "strategy-ignores"),
        ("replicas: 4", "replicas: 40", "no-room"),
        ("role: chief, replicas: 1", "role: chief, replicas: 2", "chief-count"),
        ("version: 1", "version: 1\nhello: 1", "unknown-key"),
    ],
)
def test_every_problem_leads_somewhere(digits: Driver, digits_file: Path, old: str, new: str, code: str) -> None:
    digits_file.write_text(DIGITS.replace(old, new, 1))
    digits.page.files.open_now(digits_file)
    jump(digits, code)
    page, there = digits.page, QApplication.focusWidget()
    in_field = page.inspector.isAncestorOf(there) and there.visibleRegion().boundingRect().height() > 0
    at_line = page.show_yaml.isChecked() and page.yaml.isVisible()
    assert in_field or at_line or page.editor.selection, f"{code} leads nowhere"


def test_nothing_that_trains_leads_to_the_roles(empty: Driver) -> None:
    empty.choose(empty.page.palette_.roles, "ps")
    jump(empty, "no-trainers")
    assert QApplication.focusWidget() is empty.page.palette_.roles


# Tests of the effect on Launch


def launched(driver: Driver) -> list[TopologyFile]:
    files: list[TopologyFile] = []
    driver.page.launch_requested.connect(files.append)
    return files


def test_launch_gives_the_document_as_it_is_drawn(digits: Driver, digits_file: Path) -> None:
    files = launched(digits)
    digits.choose(digits.page.palette_.roles, "worker")
    QTest.mouseClick(digits.page.bar.launch, LEFT)
    (file,) = files
    assert file.topology == digits.value
    assert file.folder == digits_file.parent
    assert file.source == str(digits_file)
    assert file.check(digits.fleet.facts()) == ()


def test_f5_checks_the_hosts_and_launches_nothing(digits: Driver) -> None:
    files = launched(digits)
    digits.on_canvas()
    digits.keys(Qt.Key.Key_F5)
    assert (digits.fleet.checks, files) == (1, [])
    digits.keys(Qt.Key.Key_Return, CONTROL)
    assert len(files) == 1


def test_ctrl_enter_in_a_list_takes_the_list_over_and_launches_nothing(digits: Driver) -> None:
    files = launched(digits)
    field = digits.page.inspector.program.around.field("setup")
    field.setFocus()
    digits.qtbot.waitUntil(field.hasFocus)
    QTest.keyClicks(field, "module load cuda")
    QTest.keyClick(field, Qt.Key.Key_Return, CONTROL)
    assert digits.page.editor.value.program.setup == ("module load cuda",)
    assert files == []


@pytest.mark.parametrize("key", [Qt.Key.Key_Return, Qt.Key.Key_Enter])
def test_ctrl_and_either_enter_key_launch(digits: Driver, key: Qt.Key) -> None:
    files = launched(digits)
    digits.on_canvas()
    digits.keys(key, CONTROL)
    assert len(files) == 1
    assert digits.page.bar.launch.toolTip() == "Run this topology on its hosts (Ctrl+Enter)"


def test_a_disabled_launch_button_states_the_reason(empty: Driver, tmp_path: Path) -> None:
    button = empty.page.bar.launch
    assert not button.isEnabled()
    assert button.toolTip().startswith("Add a replica first: ")
    empty.choose(empty.page.palette_.roles, "worker")
    assert button.isEnabled()
    assert button.toolTip().startswith("Run this topology on its hosts")
    (tmp_path / "broken.yaml").write_text("version: 1\npools: [\n")
    empty.page.document.start_new()
    empty.page.open(tmp_path / "broken.yaml")
    assert not button.isEnabled()
    assert button.toolTip().startswith("Correct the text of the file first")


def test_errors_keep_it_from_being_launched(digits: Driver) -> None:
    files = launched(digits)
    digits.fill(digits.page.inspector.program.program, "script", "no.py")
    digits.on_canvas()
    digits.keys(Qt.Key.Key_Return, CONTROL)
    assert files == []
    assert digits.notice() == "1 error prevents the launch."
    (button,) = digits.page.notice_bar.findChildren(QPushButton)
    QTest.mouseClick(button, LEFT)
    assert QApplication.focusWidget() is digits.page.inspector.program.program.field("script")


def test_the_refusal_goes_once_the_errors_are_corrected(digits: Driver) -> None:
    launched(digits)
    right = digits.page.document.value.program.script
    digits.fill(digits.page.inspector.program.program, "script", "no.py")
    digits.on_canvas()
    digits.keys(Qt.Key.Key_Return, CONTROL)
    assert digits.notice() == "1 error prevents the launch."
    digits.fill(digits.page.inspector.program.program, "script", right or "")
    digits.wait_until(lambda: digits.notice() == "")


def test_an_untitled_topology_is_saved_before_it_is_launched(empty: Driver, tmp_path: Path) -> None:
    files = launched(empty)
    assert not empty.page.bar.launch.isEnabled()
    empty.choose(empty.page.palette_.roles, "worker")
    empty.page.editor.set_program("module", "this", "module")
    QTest.mouseClick(empty.page.bar.launch, LEFT)
    assert files == []
    assert empty.notice().startswith("Save this topology first")
    empty.page.files.save_to(tmp_path / "x.yaml", empty.page.launch)
    assert [file.folder for file in files] == [tmp_path]


def test_a_topology_that_sends_nothing_needs_no_file(empty: Driver) -> None:
    files = launched(empty)
    empty.choose(empty.page.palette_.roles, "worker")
    empty.page.editor.set_program("module", "this", "module")
    empty.page.editor.set_program("workdir", None, "folder")
    QTest.mouseClick(empty.page.bar.launch, LEFT)
    assert len(files) == 1
    assert files[0].folder is None


def test_advice_is_the_windows_own(make_driver: MakeDriver) -> None:
    without_hosts = make_driver([])
    without_hosts.choose(without_hosts.page.palette_.roles, "worker")
    without_hosts.wait_until(lambda: bool(without_hosts.page.problems.problems))
    said = [problem.message for problem in without_hosts.page.problems.problems]
    assert "the fleet has no hosts" in " ".join(said)
    (add,) = without_hosts.page.problems.line.steps.findChildren(QPushButton)
    assert add.text() == "Add a host …"
    assert without_hosts.page.problems.table.item(0, 0).text() == said[0]
    assert not any("torchyard hosts" in text for text in [*said, without_hosts.page.scene.described("worker-0")])


def test_what_a_screen_reader_comes_to_has_a_name(digits: Driver) -> None:
    assert digits.page.view.viewport().accessibleName() == "Cluster"
    for area in digits.page.inspector.findChildren(QScrollArea):
        assert area.accessibleName().startswith("Fields of")

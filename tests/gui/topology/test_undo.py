"""Tests that every edit can be undone, and that undoing all edits restores the file byte by byte."""

from __future__ import annotations

from pathlib import Path

from PySide6.QtCore import Qt

from tests.gui.topology.conftest import DIGITS
from tests.gui.topology.page_driver import CONTROL, SHIFT, Driver
from torchyard_core.topology.file import read_topology


def everything(digits: Driver) -> None:
    """Makes edits of many kinds, most of them with the mouse and the keyboard."""
    page = digits.page
    digits.choose(page.palette_.roles, "worker")
    digits.choose(page.palette_.hosts, "gpu-c")
    digits.drop(page.palette_.roles, "ps", "gpu-c")
    page.palette_.search.setFocus()
    digits.type("2 work")
    digits.keys(Qt.Key.Key_Return)
    digits.on_canvas()
    digits.carry("worker-1", "gpu-b:2")
    digits.select("worker-2", "worker-3")
    digits.keys(Qt.Key.Key_C, CONTROL)
    digits.keys(Qt.Key.Key_V, CONTROL)
    digits.keys(Qt.Key.Key_D, CONTROL)
    digits.keys(Qt.Key.Key_Delete)
    digits.select("worker-0")
    digits.keys(Qt.Key.Key_X, CONTROL)
    digits.select("worker-1")
    inspector = page.inspector
    digits.fill(inspector.pools.pool, "replicas", "5")
    digits.fill(inspector.pools.runs_with, "env", "A=1")
    digits.pick(inspector.pools.pool.field("placement"), "spread")  # type: ignore[arg-type]  # This key has a choice field.
    page.editor.select(())
    digits.fill(inspector.topology, "name", "renamed")
    digits.fill(inspector.program.program, "args", "--lr '0 1'")
    digits.pick(page.bar.strategy, "None")


def test_undoing_everything_gives_the_first_bytes_of_the_file(digits: Driver, digits_file: Path) -> None:
    everything(digits)
    last = digits.value
    steps = digits.page.editor.stack.count()
    assert steps >= 15
    digits.on_canvas()
    digits.keys(Qt.Key.Key_S, CONTROL)
    assert read_topology(digits_file).topology == last
    assert digits_file.read_text() != DIGITS

    for _ in range(steps):
        digits.keys(Qt.Key.Key_Z, CONTROL)
    assert not digits.page.editor.stack.canUndo()
    digits.keys(Qt.Key.Key_S, CONTROL)
    assert digits_file.read_bytes() == DIGITS.encode()

    for _ in range(steps):
        digits.keys(Qt.Key.Key_Z, CONTROL | SHIFT)
    assert digits.value == last


def test_each_step_is_named(digits: Driver) -> None:
    everything(digits)
    stack = digits.page.editor.stack
    assert [stack.text(step) for step in range(stack.count())] == [
        "Add worker",
        "Show gpu-c",
        "Add parameter server",
        "Add 2 workers",
        "Put worker-1 on gpu-b:2",
        "Paste",
        "Duplicate 2 workers",
        "Delete 2 workers",
        "Cut worker-0",
        "Change Replicas in pool of workers",
        "Change Environment of workers",
        "Change Placement of workers",
        "Rename to renamed",
        "Change Arguments",
        "Change strategy",
    ]
    assert digits.page.edits.undo.text() == "Undo Change strategy"


def test_undo_selects_what_comes_back(digits: Driver) -> None:
    digits.select("worker-1", "worker-3")
    digits.keys(Qt.Key.Key_Delete)
    assert digits.page.editor.selection == ()
    digits.keys(Qt.Key.Key_Z, CONTROL)
    assert digits.page.editor.selection == ("worker-1", "worker-3")


def test_an_edit_that_changes_nothing_is_no_step(digits: Driver) -> None:
    digits.select("worker-1")
    digits.fill(digits.page.inspector.pools.pool, "replicas", "4")
    assert digits.page.editor.stack.count() == 0
    assert not digits.page.document.is_modified

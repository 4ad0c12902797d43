"""Tests of the second line of a run in the list, and of the tool tip that shows it in full."""

from __future__ import annotations

from dataclasses import replace

from PySide6.QtCore import Qt

from tests.gui.runs.test_run_titles import known, noon
from torchyard_gui.runs.run_list import RunListModel


def test_the_state_is_first_and_the_tool_tip_has_the_full_line(qapp: object) -> None:
    first = known("a", "digits", noon())
    second = replace(known("b", "digits", noon() + 3600, restarted_from="a"), state="running")
    model = RunListModel()
    model.set_runs([second, first], {})
    assert model.details_of(second) == "running · restart of 12:30 · gpu-a"
    tip = model.index(1).data(Qt.ItemDataRole.ToolTipRole).split("\n")
    assert tip[:2] == ["digits · 13:30", "running · restart of 12:30 · gpu-a"]


def test_an_id_that_tells_runs_apart_leaves_the_first_line_to_the_name(qapp: object) -> None:
    first, second = (
        replace(known(run_id, "digits", noon()), state="running") for run_id in ("20261120-a", "20261120-b")
    )
    model = RunListModel()
    model.set_runs([second, first], {})
    assert model.time_of(first) == ("", "20261120-a")
    assert model.details_of(first) == "running · 20261120-a · gpu-a"


def test_the_reason_of_a_failure_follows_the_state(qapp: object) -> None:
    first = known("a", "digits", noon())
    failed = replace(known("b", "digits", noon() + 3600, restarted_from="a"), state="failed", reason="out of memory")
    model = RunListModel()
    model.set_runs([failed, first], {})
    assert model.details_of(failed) == "failed · out of memory · restart of 12:30"
    assert model.index(1).data(Qt.ItemDataRole.ToolTipRole).count("out of memory") == 1

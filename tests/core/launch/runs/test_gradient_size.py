"""Tests of finding the gradient size that earlier runs reported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torchyard_core.launch.runs.gradient_size import last_gradient_sizes
from torchyard_core.launch.runs.history import History, RunRecord


def run(history: History, run_id: str, name: str, submitted: str, **metrics: Any) -> None:
    history.save(RunRecord(run_id, name, "", "gpu-a", ("gpu-a",), submitted, "succeeded", metrics=metrics))


def test_the_newest_run_of_a_name_that_reported_a_size_counts(tmp_path: Path) -> None:
    history = History(tmp_path)
    run(history, "a", "net", "2026-01-01T00:00:00Z", worker_0={"gradient_bytes": 10.0})
    run(history, "b", "net", "2026-01-02T00:00:00Z", worker_0={"gradient_bytes": 20.0}, worker_1={"step": 3.0})
    run(history, "c", "net", "2026-01-03T00:00:00Z", worker_0={"step": 1.0})
    run(history, "d", "other", "2026-01-04T00:00:00Z", worker_0={"gradient_bytes": None})
    assert last_gradient_sizes(history) == {"net": 20.0}


def test_a_history_without_runs_knows_none(tmp_path: Path) -> None:
    assert last_gradient_sizes(History(tmp_path / "none")) == {}

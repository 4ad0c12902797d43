"""Tests of the history of runs that this desktop launched."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchyard_core.errors import UsageError
from torchyard_core.launch.runs.history import History, RunRecord
from torchyard_core.launch.runs.known_runs import KnownRun, find_run, list_runs


def record(run_id: str, state: str = "running") -> RunRecord:
    return RunRecord(run_id, "digits", "digits.yaml", "gpu-a", ("gpu-a", "gpu-b"), "2026-11-21T03:00:00Z", state)


def test_records_come_back_newest_first(tmp_path: Path) -> None:
    history = History(tmp_path / "history")
    history.save(record("20261120-090000-aaaa"))
    history.save(record("20261121-090000-bbbb"))

    assert [found.run_id for found in history.records()] == ["20261121-090000-bbbb", "20261120-090000-aaaa"]
    assert history.load("20261120-090000-aaaa") == record("20261120-090000-aaaa")


def test_an_update_changes_what_is_known_and_adds_nothing(tmp_path: Path) -> None:
    history = History(tmp_path / "history")
    history.save(record("one"))

    history.update("one", state="succeeded")
    history.update("of-another-desktop", state="failed")

    assert [(found.run_id, found.state) for found in history.records()] == [("one", "succeeded")]


def test_a_record_that_cannot_be_read_is_left_out(tmp_path: Path) -> None:
    history = History(tmp_path)
    history.save(record("good"))
    (tmp_path / "torn.json").write_text('{"run_id": ')
    (tmp_path / "newer.json").write_text('{"hosts": [], "run_id": "x", "something": "else"}')

    assert [found.run_id for found in history.records()] == ["good"]


def test_an_id_that_fits_several_runs_names_the_first_and_counts_the_others(tmp_path: Path) -> None:
    history = History(tmp_path / "history")
    for number in range(1, 8):
        history.save(record(f"20261121-09000{number}-aaaa"))
    known = list_runs({}, history)

    with pytest.raises(UsageError, match="-090003-aaaa and 2 more"):
        find_run("20261121", known)
    assert find_run("20261121-090004", known).run_id == "20261121-090004-aaaa"


def test_a_trial_of_a_sweep_is_found_by_its_whole_id_only() -> None:
    about = ("s", "running", "", "", "gpu-a", ("gpu-a",))
    sweep = KnownRun("20261128-090004-aaaa", *about, is_fresh=True, is_sweep=True)
    trial = KnownRun(f"{sweep.run_id}.3", *about, is_fresh=True, sweep_run=sweep.run_id)
    known = [trial, sweep]
    assert [find_run(run_id, known) for run_id in ("last", "20261128", "s", sweep.run_id)] == [sweep] * 4
    assert find_run(trial.run_id, known) == trial

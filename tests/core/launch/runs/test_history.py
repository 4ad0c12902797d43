"""Tests of the history of runs that this desktop launched."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from torchyard_core.errors import UsageError
from torchyard_core.launch.runs.history import History, RunRecord
from torchyard_core.launch.runs.known_runs import KnownRun, find_run, is_over, list_runs, remember_states


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


class Primary:
    """The link to a host that knows one run."""

    def __init__(self, host: str, state: str, primary: str = "gpu-a") -> None:
        record = {"primary": primary, "hosts": ["gpu-a", "gpu-b"]}
        line = {"run_id": "one", "name": "digits", "state": state, "reason": "", "as_of": "2026-11-21T04:00:00Z"}
        self.host, self._line = host, {**line, "alive": not is_over(state), "record": record}

    def submit(self, method: str, params: dict[str, Any]) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result([self._line])
        return future


def test_the_last_state_of_a_run_is_remembered_while_its_primary_does_not_answer(tmp_path: Path) -> None:
    history = History(tmp_path / "history")
    history.save(record("one", "waiting"))
    for state in ("running", "succeeded"):
        remember_states(list_runs({"gpu-a": Primary("gpu-a", state)}, history), history)
        [known] = list_runs({}, history)
        assert (known.state, known.as_of, known.is_fresh) == (state, "2026-11-21T04:00:00Z", False)
        assert known.has_ended == (state == "succeeded")

    [known] = list_runs({"gpu-b": Primary("gpu-b", "running")}, history)
    assert known.has_ended, "a host that missed the end does not make the run live again"


def test_neither_old_states_nor_an_end_with_its_results_are_overwritten(tmp_path: Path) -> None:
    history = History(tmp_path / "history")
    ended = replace(record("one", "succeeded"), ended="2026-11-21T05:00:00Z")
    for kept in (ended, replace(record("one", "starting"), is_confirmed=False)):
        history.save(kept)
        remember_states(list_runs({"gpu-a": Primary("gpu-a", "running")}, history), history)
        assert history.load("one") == kept
    history.save(record("one", "running"))
    remember_states(list_runs({"gpu-b": Primary("gpu-b", "failed")}, history), history)
    assert history.load("one") == record("one", "running")

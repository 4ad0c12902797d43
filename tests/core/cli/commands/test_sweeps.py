"""Tests of `torchyard sweeps show` with a primary that is simulated."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.core.cli.command_runner import answer, torchyard
from tests.core.sweeps.test_trial_table import SEARCH, data, row
from tests.lab import Desktop
from torchyard_core.cli.commands import sweeps
from torchyard_core.errors import AgentRefused
from torchyard_core.launch.runs.history import History, RunRecord
from torchyard_core.launch.runs.sweep_copies import TABLE

MakeDesktop = Callable[..., Desktop]
RECORD = RunRecord("s-1", "digits", "t.yaml", "gpu-a", ("gpu-a",), "2026-11-28T09:00:00Z", "waiting", sweep=SEARCH)


class Primary:
    """The link to the agent of the sweep's primary."""

    host = "gpu-a"

    def __init__(self, state: str, reason: str, table: dict[str, Any] | None = None):
        self._state, self._reason = state, reason
        self._table = None if table is None else json.dumps(table).encode()

    def call(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        if method == "files.read":
            if self._table is None or params["path"] != TABLE:
                raise AgentRefused("gpu-a", "there is no such file", code="no_file")
            return {"data": base64.b64encode(self._table[params["offset"] :]).decode(), "size": len(self._table)}
        about = {"state": self._state, "reason": self._reason, "as_of": "2026-11-28T09:00:01Z", "alive": True}
        return {**about, "record": {}, "replicas": [], "metrics": {}, "timings": {}}


@pytest.fixture
def show(make_desktop: MakeDesktop, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Desktop]:
    """Returns a function that makes a desktop on which `sweeps show s-1` asks a primary."""

    def create(primary: Primary, *records: RunRecord) -> Desktop:
        desktop = make_desktop()
        desktop.fleet_file.write_text("version: 1\nhosts: [{name: gpu-a, address: 127.0.0.1}]\n")
        for record in records or (RECORD,):
            History(desktop.home / "history").save(record)
        monkeypatch.setattr(sweeps, "link_to_primary", lambda fleet, run: primary)
        return desktop

    return create


@pytest.mark.parametrize(
    ("state", "reason", "table_state"),
    [
        ("waiting", "job 9_[1-8%2] waits in the queue: Priority", "waiting"),
        ("stopped", "stopped by kim@laptop", "stopped"),
        ("failed", "n1: Optuna is not installed in python3", "finished"),
    ],
)
def test_a_sweep_without_trials_is_shown_with_its_state_and_reason(
    show: Callable[..., Desktop], state: str, reason: str, table_state: str
) -> None:
    desktop = show(Primary(state, reason))
    assert torchyard(desktop, "sweeps", "show", "s-1").stdout.splitlines() == [
        "s-1  digits",
        f"{state}: {reason}",
        "0 of 8 trials, 0 failed",
    ]
    shown = answer(desktop, "sweeps", "show", "s-1")
    assert (shown["state"], shown["trials"], shown["wanted"], shown["best"]) == (table_state, [], 8, None)
    assert (shown["run"]["state"], shown["run"]["reason"], shown["fresh"]) == (state, reason, True)


def test_a_sweep_that_waits_to_continue_another_one_has_the_trials_of_that_one(show: Callable[..., Desktop]) -> None:
    desktop = show(Primary("waiting", "job 9 waits in the queue"), replace(RECORD, restarted_from="s-0"))
    earlier = desktop.home / "sweeps" / "s-0.json"
    earlier.parent.mkdir(parents=True, exist_ok=True)
    earlier.write_text(json.dumps(data(row(1, "complete", 1.0), row(2, "interrupted"))))
    assert "1 of 8 trials, 0 failed, 1 interrupted" in torchyard(desktop, "sweeps", "show", "s-1").stdout


def test_the_table_has_the_jobs_of_trials_and_short_numbers_and_the_json_has_all_digits(
    show: Callable[..., Desktop],
) -> None:
    params = {"lr": 0.0017826497151386949, "c": "a"}
    table = data(row(1, "complete", 1.0, params=params, job="9_2"), row(2, "running", params={"lr": 3, "c": "b"}))
    desktop = show(Primary("running", "", table))
    *_, headings, first, second = torchyard(desktop, "sweeps", "show", "s-1").stdout.splitlines()
    assert headings.split() == ["TRIAL", "JOB", "STATE", "LOSS", "lr", "c", "HOSTS", "RUN", "CAUSE"]
    assert first.split()[:6] == ["1", "9_2", "complete", "1", "0.001783", "a"]
    assert second.split()[:6] == ["2", "-", "running", "-", "3", "b"]
    (trial, _) = answer(desktop, "sweeps", "show", "s-1")["trials"]
    assert (trial["params"], trial["job"]) == (params, "9_2")


def test_an_unknown_sweep_and_a_run_that_is_none_are_refused_with_the_list_of_sweeps(
    show: Callable[..., Desktop],
) -> None:
    run = replace(RECORD, run_id="r-1", sweep=None)
    desktop = show(Primary("waiting", ""), RECORD, run)
    other = answer(desktop, "sweeps", "show", "r-1", code=2)["error"]
    assert other == {**other, "code": "no_sweep", "message": "run r-1 is not a sweep."}
    assert "sweeps list" in other["hint"]
    desktop.fleet_file.write_text("version: 1\nhosts: []\n")
    unknown = answer(desktop, "sweeps", "show", "nothing", code=2)["error"]
    assert unknown == {**unknown, "code": "no_run", "message": "no sweep nothing is known."}
    assert "sweeps list" in unknown["hint"]

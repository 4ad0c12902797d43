"""Tests of what `torchyard sweep` prints at the end of a sweep."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.core.sweeps.test_trial_table import ROWS, SEARCH, data, row
from torchyard_core.cli import output
from torchyard_core.cli.commands.sweep import with_results
from torchyard_core.cli.study_updates import StudyUpdates
from torchyard_core.cli.views.run_progress import PlainView
from torchyard_core.cli.views.sweep_results import best_text, trials_text
from torchyard_core.errors import AgentRefused, Unreachable
from torchyard_core.home import Home
from torchyard_core.launch.runs.history import History, RunRecord
from torchyard_core.sweeps.trial_table import read_table

ENDED = {
    "event": "run_ended",
    "run_id": "s-1",
    "state": "succeeded",
    "reason": "",
    "replicas": [],
    "timings": {"ended_s": 5.0},
}


@pytest.fixture(autouse=True)
def without_options(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forgets the options of earlier commands, which printed commands would repeat."""
    monkeypatch.setattr(output, "_called_with", "")


class Primary:
    """The link to the agent with the sweep's table, or the error that the agent's host has."""

    host = "gpu-a"

    def __init__(self, table: dict[str, Any] | None, error: Exception | None = None):
        self._text = None if table is None else json.dumps(table).encode()
        self._error = error

    def call(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        if self._error is not None:
            raise self._error
        if self._text is None:
            raise AgentRefused("gpu-a", "there is no such file", code="no_file")
        return {"data": base64.b64encode(self._text[params["offset"] :]).decode(), "size": len(self._text)}


def completed(tmp_path: Path, primary: Primary, state: str = "succeeded") -> dict[str, Any]:
    chosen: Any = SimpleNamespace(home=Home(tmp_path))
    fleet: Any = SimpleNamespace()
    started: Any = SimpleNamespace(run_id="s-1", primary=primary)
    return with_results(StudyUpdates(chosen, fleet))(started, {**ENDED, "state": state})


def test_the_last_event_has_the_best_trial_the_counts_and_the_next_commands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = completed(tmp_path, Primary(data(*ROWS, row(6, "interrupted"))))
    assert ended["sweep"] == {
        "metric": "loss",
        "wanted": 9,
        "complete": 3,
        "failed": 1,
        "pruned": 1,
        "interrupted": 1,
        "running": 0,
        "best": {"trial": "3", "value": 1.0, "params": {"lr": pytest.approx(0.3), "c": "a"}},
        "next": ["torchyard sweeps show s-1", "torchyard sweeps best s-1 -o FILE"],
    }
    with PlainView() as view:
        view.show(ended)
    printed = capsys.readouterr()
    assert printed.out.splitlines() == [
        "✓ run s-1 succeeded after 5.0 s",
        "5 of 9 trials, 1 failed, 1 pruned, 1 interrupted",
        "best: trial 3, loss 1, with lr=0.30000000000000004, c=a",
    ]
    assert "`torchyard sweeps show s-1` shows its trials." in printed.err
    assert "`torchyard sweeps best s-1 -o FILE` writes its topology" in printed.err


def test_a_stopped_sweep_names_the_command_that_resumes_it(capsys: pytest.CaptureFixture[str]) -> None:
    results = {"metric": "loss", **read_table(data(row(1, "interrupted"))).results()}
    with PlainView() as view:
        view.show({**ENDED, "state": "stopped", "reason": "stopped by kim@laptop", "sweep": results})
    printed = capsys.readouterr()
    assert printed.out.startswith("■ run s-1 stopped after 5.0 s: stopped by kim@laptop\n")
    assert printed.err.splitlines()[-1] == "`torchyard sweeps resume s-1` continues it."


def test_a_sweep_that_ended_before_its_first_trial_has_zero_trials(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = RunRecord("s-1", "digits", "t.yaml", "hpc.1", ("hpc.1",), "2026-11-28T09:00:00Z", "waiting", sweep=SEARCH)
    History(Home(tmp_path).history).save(record)
    ended = completed(tmp_path, Primary(None), state="stopped")
    assert ended["sweep"]["wanted"] == 8
    assert ended["sweep"]["next"] == ["torchyard sweeps resume s-1"]
    with PlainView() as view:
        view.show(ended)
    assert "0 of 8 trials, 0 failed\n" in capsys.readouterr().out


def test_without_a_complete_trial_there_is_no_best_one(tmp_path: Path) -> None:
    ended = completed(tmp_path, Primary(data(row(1, "failed"))))
    assert ended["sweep"]["best"] is None
    assert ended["sweep"]["next"] == ["torchyard sweeps show s-1"]
    results = read_table(data(row(1, "failed"))).results()
    assert (trials_text(results), best_text(results, "loss")) == (
        "1 of 9 trials, 1 failed",
        "best: none, since no trial is complete",
    )


@pytest.mark.parametrize("primary", [Primary(None), Primary(None, Unreachable("gpu-a", "gpu-a does not answer."))])
def test_trials_that_cannot_be_read_do_not_hide_the_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], primary: Primary
) -> None:
    ended = completed(tmp_path, primary)
    assert ended["sweep"] is None
    with PlainView() as view:
        view.show(ended)
    printed = capsys.readouterr()
    assert printed.out == "✓ run s-1 succeeded after 5.0 s\n"
    assert ("gpu-a does not answer. `torchyard sweeps show s-1`" in printed.err) == (primary._error is not None)

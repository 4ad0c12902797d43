"""Tests of the refusals to resume and to restart sweeps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from torchyard_core.app.desktop import Desktop
from torchyard_core.app.restart_run import RestartRun
from torchyard_core.app.resume_sweep import resume_sweep
from torchyard_core.errors import AgentRefused, RunFailed, TorchyardError, Unreachable
from torchyard_core.home import Home
from torchyard_core.launch.runs.history import RunRecord
from torchyard_core.launch.runs.known_runs import KnownRun, list_runs
from torchyard_core.next_steps import ResumeSweep, ShowSweep, StopSweep, WriteTrial

TOPOLOGY = """
version: 1
name: digits
pools: [{name: workers, role: worker, replicas: 1, hosts: [gpu-a]}]
program: {script: train.py, args: ["{params.x}"]}
"""
SEARCH = """
version: 1
parameters: {x: {distribution: uniform, low: 0, high: 1}}
objective: {metric: loss, goal: minimize}
trials: 3
"""


class Primary:
    """The link to the primary's agent, which knows the runs in `known`."""

    def __init__(self) -> None:
        self.known: set[str] = set()

    def call(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        if params["run_id"] not in self.known:
            raise AgentRefused("gpu-a", "there is no such run", code="no_run")
        return {}


@pytest.fixture
def primary() -> Primary:
    return Primary()


@pytest.fixture
def desktop(tmp_path: Path, primary: Primary) -> Iterator[Desktop]:
    fleet: Any = SimpleNamespace(knows=lambda name: name == "gpu-a", link=lambda name, install: primary)
    opened = Desktop.open(Home(tmp_path), fleet)
    yield opened
    opened.calendar.close()


def sweep(desktop: Desktop, run_id: str, **changes: Any) -> KnownRun:
    """Records a stopped sweep of this desktop, with one change or another."""
    record = RunRecord(run_id, "digits", "t.yaml", "gpu-a", ("gpu-a",), "2026-11-28T09:00:00Z", "stopped")
    desktop.history.save(replace(record, topology=TOPOLOGY, sweep=SEARCH, snapshot="root", **changes))
    return next(run for run in list_runs({}, desktop.history) if run.run_id == run_id)


def refusal(desktop: Desktop, run: KnownRun, error: TorchyardError | None = None) -> RunFailed:
    with pytest.raises(RunFailed) as refused:
        resume_sweep(desktop, run, error)
    return refused.value


def test_a_sweep_that_another_one_continues_is_not_resumed_again(desktop: Desktop) -> None:
    first = sweep(desktop, "s-1")
    resume_sweep(desktop, first, None)
    second = sweep(desktop, "s-2", restarted_from="s-1")
    refused = refusal(desktop, first, Unreachable("gpu-a", "gone"))
    assert refused.message == "sweep s-1 was continued as sweep s-2."
    assert refused.next == (ResumeSweep("s-2"),)
    resume_sweep(desktop, second, None)

    sweep(desktop, "s-3", restarted_from="s-2", state="running")
    for run in (first, second):
        assert refusal(desktop, run).message == f"sweep {run.run_id} was continued as sweep s-3."
        assert refusal(desktop, run).next == (ShowSweep("s-3"),)


def test_a_continuation_that_never_began_does_not_count(desktop: Desktop, primary: Primary) -> None:
    first = sweep(desktop, "s-1")
    sweep(desktop, "s-2", restarted_from="s-1", is_confirmed=False, state="starting")
    resume_sweep(desktop, first, None)
    primary.known.add("s-2")
    assert refusal(desktop, first).code == "sweep_continued"


def test_a_running_sweep_is_shown_or_stopped(desktop: Desktop) -> None:
    refused = refusal(desktop, sweep(desktop, "s-1", state="running"))
    assert refused.message == "sweep s-1 is running."
    assert refused.next == (ShowSweep("s-1"), StopSweep("s-1"))
    refused = refusal(desktop, sweep(desktop, "s-1", state="stopping"))
    assert refused.sentence().startswith("sweep s-1 is stopping. Resume it once it has ended.")
    with pytest.raises(Unreachable):
        resume_sweep(desktop, sweep(desktop, "s-1", state="running"), Unreachable("gpu-a", "gone"))


def test_a_restart_of_a_sweep_or_a_trial_names_what_is_possible(desktop: Desktop) -> None:
    run = sweep(desktop, "s-1")
    with pytest.raises(RunFailed, match="run s-1 is a sweep") as refused:
        RestartRun(desktop, run).prepare()
    assert refused.value.next == (ResumeSweep("s-1"),)
    trial = replace(run, run_id="s-1.7-2", is_sweep=False, sweep_run="s-1")
    with pytest.raises(RunFailed, match=r"run s-1\.7-2 is trial 7 of sweep s-1") as refused:
        RestartRun(desktop, trial).prepare()
    assert refused.value.next == (WriteTrial("s-1", ("--trial", "7")),)
    assert "`torchyard sweeps best s-1 --trial 7 -o FILE`" in refused.value.hint

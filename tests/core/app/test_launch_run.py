"""Tests of launches from the command and from the window: the order of their steps, and the recorded outcomes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from torchyard_core.app.desktop import Desktop
from torchyard_core.app.launch_run import InvalidTopology, LaunchCallbacks, LaunchRun
from torchyard_core.app.restart_run import RestartRun
from torchyard_core.errors import AgentMissing, Unreachable
from torchyard_core.home import Home
from torchyard_core.launch.checks.check import Check
from torchyard_core.launch.launch import Launch, StartedRun, StartUnknown
from torchyard_core.launch.runs.history import RunRecord
from torchyard_core.launch.runs.known_runs import KnownRun
from torchyard_core.topology.file import TopologyFile, topology_from_text

TOPOLOGY = """
version: 1
name: digits
pools: [{name: workers, role: worker, replicas: 1, hosts: [gpu-a]}]
program: {launcher: command, command: ["true"]}
"""


@pytest.fixture
def desktop(tmp_path: Path) -> Iterator[Desktop]:
    fleet: Any = SimpleNamespace(
        known=lambda: (),
        hosts={"gpu-a": None},
        others=(),
        knows=lambda name: name == "gpu-a",
        links=lambda names, install: {one: AgentMissing(one, "") for one in names},
    )
    opened = Desktop.open(Home(tmp_path), fleet)
    yield opened
    opened.calendar.close()


@pytest.fixture
def started() -> StartedRun:
    plan: Any = SimpleNamespace(hosts=("gpu-a",), replicas=(), worlds=())
    primary: Any = SimpleNamespace(host="gpu-a")
    return StartedRun("20261123-091502-3f9c", plan, primary, {"gpu-a": primary}, {})


@pytest.fixture
def valid(monkeypatch: pytest.MonkeyPatch) -> TopologyFile:
    """Returns a topology without problems, which does not depend on the fleet."""
    monkeypatch.setattr(TopologyFile, "check", lambda source, known: [])
    return topology_from_text(TOPOLOGY, "digits.yaml")


def replaced(monkeypatch: pytest.MonkeyPatch, name: str, act: Callable[..., Any]) -> None:
    monkeypatch.setattr(Launch, name, act)


def test_a_run_that_has_started_is_recorded(
    desktop: Desktop, valid: TopologyFile, started: StartedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    replaced(monkeypatch, "run", lambda launch: started)
    assert LaunchRun(desktop, valid, name="mine").run() is started
    (record,) = desktop.history.records()
    assert (record.run_id, record.name, record.is_confirmed) == (started.run_id, "mine", True)


def test_a_run_that_may_have_begun_is_recorded_as_unconfirmed(
    desktop: Desktop, valid: TopologyFile, started: StartedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(launch: Launch) -> StartedRun:
        raise StartUnknown(started)

    replaced(monkeypatch, "run", unknown)
    with pytest.raises(StartUnknown):
        LaunchRun(desktop, valid).run()
    assert [record.is_confirmed for record in desktop.history.records()] == [False]


def test_a_launch_that_is_taken_back_leaves_no_record(
    desktop: Desktop, valid: TopologyFile, started: StartedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    undone: list[StartedRun] = []
    replaced(monkeypatch, "run", lambda launch: started)
    replaced(monkeypatch, "undo", lambda launch, one: undone.append(one))
    launch = LaunchRun(desktop, valid)
    launch.undo(launch.run())
    assert (undone, desktop.history.records()) == ([started], [])


def test_a_full_disk_is_reported_and_does_not_stop_the_run(
    desktop: Desktop, valid: TopologyFile, started: StartedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors: list[OSError] = []
    desktop.home.history.touch()  # This file has the name of the history folder.
    replaced(monkeypatch, "run", lambda launch: started)
    LaunchRun(desktop, valid, LaunchCallbacks(on_unrecorded=errors.append)).run()
    assert len(errors) == 1


def test_a_launch_that_was_cancelled_while_it_was_prepared_is_cancelled(
    desktop: Desktop, valid: TopologyFile, started: StartedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    cancelled: list[Launch] = []
    replaced(monkeypatch, "run", lambda launch: started)
    replaced(monkeypatch, "cancel", lambda launch: cancelled.append(launch))
    launch = LaunchRun(desktop, valid, LaunchCallbacks(on_check=lambda check: launch.cancel()))
    launch.run()
    assert len(cancelled) == 1


def test_all_problems_of_a_topology_are_reported_before_any_host_is_asked(desktop: Desktop) -> None:
    checks: list[Check] = []
    source = topology_from_text(TOPOLOGY.replace("command: [", "commands: ["), "digits.yaml")
    with pytest.raises(InvalidTopology) as caught:
        LaunchRun(desktop, source, LaunchCallbacks(on_check=checks.append)).run()
    assert caught.value.first_error.severity == "error"
    assert "digits.yaml" in caught.value.message
    assert (checks, caught.value.code) == ([], "topology_problems")


def test_a_restart_reports_each_host_that_does_not_answer(desktop: Desktop) -> None:
    record = RunRecord("run-a", "digits", "digits.yaml", "gpu-b", ("gpu-b", "gpu-a"), "2026-11-22T09:00:00Z", "failed")
    errors: list[Exception] = []
    ended = KnownRun("run-a", "digits", "failed", "", "", "gpu-b", record.hosts, is_fresh=True)
    with pytest.raises(Unreachable, match="primary host gpu-b of run run-a is not in the fleet file"):
        RestartRun(desktop, ended, LaunchCallbacks(on_host_error=errors.append)).run()
    assert [type(error) for error in errors] == [AgentMissing, Unreachable]

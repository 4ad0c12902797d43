"""Tests of `on_worker_loss: continue` on hosts: a lost chief, and a lost host that returns."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.faults.runs import LaunchedRun, Team
from tests.faults.test_strategies import (
    SOON_S,
    kill,
    launch,
    steps_of,
    wait_for_checkpoint,
    wait_for_starts,
    wait_for_steps,
)
from tests.lab import Desktop, Lab
from tests.waiting import wait_until
from torchyard_roles.checkpoints import checkpoint_files

pytestmark = [pytest.mark.lab, pytest.mark.train, pytest.mark.timeout(400)]

NAMES = ("worker-0", "worker-1", "worker-2")
WORKERS = "{name: workers, role: worker, replicas: 3, min_replicas: 1, placement: spread, hosts: [gpu-a, gpu-b, gpu-c]}"
CONTINUE = "kind: all_reduce, on_worker_loss: continue"
RETURN_S = 2 * SOON_S
"""Timeout in seconds for a lost worker to exit, start again and return."""


@pytest.fixture
def desktop(desktop: Desktop, lab3: Lab, warm_python: str) -> Desktop:
    """Returns a desktop whose hosts use an interpreter that has already imported torch."""
    desktop.use(lab3, python=warm_python)
    return desktop


def lost(run: LaunchedRun) -> list[list[str]]:
    """Returns, for each membership of the run so far, the replicas that were lost."""
    return [event["lost"] for event in run.of("membership")]


def saved_count(folder: Path) -> int:
    """Returns the script's step counter in the newest checkpoint, or 0 without a readable checkpoint."""
    try:
        steps = checkpoint_files.steps(folder)
        return (
            int(checkpoint_files.read(folder, steps[0]).load("extra.pt")["stateful"]["counter"]["last_epoch"])
            if steps
            else 0
        )
    except checkpoint_files.Damaged:
        return 0


def wait_for_return(run: LaunchedRun, name: str) -> None:
    wait_until(lambda: f"{name} is back at step" in run.log(name), RETURN_S, what=lambda: run.log(name)[-800:])
    wait_for_steps(run, *NAMES)
    assert not run.of("gang_restart")


def stop(run: LaunchedRun) -> None:
    """Stops the run, and checks that each worker exits with code 0."""
    ended = run.stop(force=False)
    assert (ended["state"], {one["exit_code"] for one in ended["replicas"]}) == ("stopped", {0}), ended


def check_steps(run: LaunchedRun) -> None:
    """Checks that no worker has made the same step twice."""
    for name in NAMES:
        steps = [step for step, _ in steps_of(run, name)]
        assert steps == sorted(set(steps)), name


def test_the_next_worker_saves_checkpoints_until_a_lost_chief_is_back(team: Team) -> None:
    run = launch(team, CONTINUE, WORKERS)
    wait_for_starts(run, 1, *NAMES)
    wait_for_checkpoint(team, run)
    kill(team, run, "worker-0")
    last = steps_of(run, "worker-0")[-1][0]
    folder = run.folder(run.places["worker-1"]) / "outputs" / "checkpoints"
    wait_until(lambda: saved_count(folder) > last, SOON_S)

    wait_for_return(run, "worker-0")
    at = int(re.findall(r"is back at step (\d+)", run.log("worker-0"))[-1])
    assert wait_for_checkpoint(team, run) > at
    assert lost(run) == [["worker-0"], []]
    check_steps(run)
    stop(run)


@pytest.mark.parametrize(
    ("strategy", "pools"),
    [
        pytest.param(CONTINUE, [WORKERS], id="all_reduce"),
        # Under this strategy, the lost worker also sums a part of the gradients.
        pytest.param(
            CONTINUE.replace("all_reduce", "reduction_server"),
            [WORKERS, "{name: reducers, role: reducer, replicas: 1, hosts: [gpu-a]}"],
            id="reduction_server",
            marks=pytest.mark.proof,
        ),
    ],
)
def test_workers_continue_without_a_lost_host_and_its_worker_returns_with_it(
    team: Team, strategy: str, pools: list[str]
) -> None:
    team.impatient(lease_s=5.0, heartbeat_s=0.4)
    run = launch(team, strategy, *pools)
    wait_for_starts(run, 1, *NAMES)
    away = run.places["worker-2"]
    team.lab[away].cut_cable()
    wait_until(lambda: ["worker-2"] in lost(run), SOON_S)
    wait_for_steps(run, "worker-0", "worker-1")
    assert f"{away} was lost" in run.of("membership")[0]["cause"]

    team.lab[away].mend_cable()
    wait_for_return(run, "worker-2")
    assert lost(run)[-1] == []
    check_steps(run)
    stop(run)

"""Tests of what a desktop's session does about the trials of a sweep whose jobs wait, were killed, or are stopped."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.agent.slurm.test_sweep_folder import SWEEP, state_of, sweep_in, table_of
from tests.waiting import eventually
from torchyard_agent.protocol.run_states import RunState
from torchyard_agent.slurm import job_folder, sweep_folder
from torchyard_agent.slurm.cluster_runs import ClusterRuns
from torchyard_agent.slurm.job_queue import JobQueue

PROGRAMS = {
    "squeue": "cat {folder}/queue.txt",
    "scontrol": "cat {folder}/shown-$4 || {{ echo 'Invalid job id specified' >&2; exit 1; }}",
    "scancel": 'echo "$@" >> {folder}/cancelled',
    "sacct": "exit 1",
}
SHOWN = "JobId=30 ArrayJobId=24 ArrayTaskId={task} JobState={state} Reason=None Restarts={restarts} Requeue=1\n"


class Cluster:
    """The login node of a cluster with a sweep of two trials, the elements 1 and 2 of the array 24, which both run."""

    def __init__(self, folder: Path):
        self.folder = folder
        (folder / "bin").mkdir()
        for name, text in PROGRAMS.items():
            (folder / "bin" / name).write_text(f"#!/bin/sh\n{text.format(folder=folder)}\n")
            (folder / "bin" / name).chmod(0o755)
        self.run_dir = sweep_in(folder, 2, "running", "running")
        job_folder.write(job_folder.path(self.run_dir), "job.json", {"sweep": {"is_array": True}})
        for trial in (1, 2):
            job = Path(job_folder.path(self.trial_dir(trial)))
            job.mkdir()
            job_folder.write(str(job), "submitted.json", {"jobs": [f"24_{trial}"], "at": 0.0})
            started = {"nodes": {"hpc.1": "n1"}, "job_id": f"24_{trial}", "restart": 0, "log_start": 0}
            job_folder.write(str(job), "started.json", started)
        self.show({1: "RUNNING", 2: "RUNNING"})

    def trial_dir(self, trial: int) -> str:
        return sweep_folder.sibling(self.run_dir, f"{SWEEP}.{trial}")

    def show(self, states: dict[int, str], restarts: int = 0) -> None:
        """Sets the states of the elements for `scontrol` and, of those in the queue, for `squeue`."""
        lines = {task: SHOWN.format(task=task, state=state, restarts=restarts) for task, state in states.items()}
        for task, line in lines.items():
            (self.folder / f"shown-24_{task}").write_text(line)
        (self.folder / "shown-24").write_text("".join(lines.values()))
        queue = [
            f"24_{task}|torchyard-{SWEEP}.{task}|{state}|JobHeldUser|N/A||root|N/A|\n"
            for task, state in states.items()
            if state in ("PENDING", "RUNNING", "COMPLETING")
        ]
        (self.folder / "queue.txt").write_text("".join(queue))

    def runs(self) -> ClusterRuns:
        return ClusterRuns(str(self.folder), "hpc", "hpc.1", "", JobQueue(str(self.folder)))

    def watch(self, condition: Callable[[], bool]) -> None:
        """Lets a session watch the queue until a condition is met."""

        async def watch() -> None:
            watching = asyncio.get_running_loop().create_task(self.runs().watch_queue())
            await eventually(condition)
            watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watching

        asyncio.run(watch())

    def stop(self, run_id: str, **params: Any) -> None:
        asyncio.run(self.runs().forward("stop", {"run_id": run_id, "by": "kim", **params}))

    def rows(self, name: str) -> list[Any]:
        return [row[name] for row in table_of(self.run_dir)["trials"]]

    @property
    def cancelled(self) -> list[str]:
        file = self.folder / "cancelled"
        return file.read_text().splitlines() if file.exists() else []


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    return Cluster(tmp_path)


def test_trials_whose_jobs_wait_again_or_were_killed_are_shown_so_while_the_sweep_goes_on(cluster: Cluster) -> None:
    cluster.show({1: "PENDING", 2: "FAILED"}, restarts=1)
    cluster.watch(lambda: cluster.rows("state") == ["waiting", "failed"] and state_of(cluster.run_dir)[1] != "")
    assert cluster.rows("hosts") == [[], ["n1"]]
    assert cluster.rows("cause") == ["", "Slurm ended its job 24_2: FAILED"]
    assert state_of(cluster.run_dir, f"{SWEEP}.2") == ("failed", "Slurm ended its job 24_2: FAILED")
    assert state_of(cluster.run_dir) == ("running", "job 24_1 waits in the queue: JobHeldUser")
    log = Path(cluster.run_dir, "logs", "coordinator-0.log").read_text()
    assert log == "trial 1: waits again: REQUEUED\n"


@pytest.mark.parametrize("state", ["PENDING", "COMPLETING"])
def test_a_trial_that_is_stopped_while_it_waits_again_has_failed_at_once(cluster: Cluster, state: str) -> None:
    job_folder.journal_interruption(cluster.trial_dir(1), f"{SWEEP}.1", "24_1", 0, "REQUEUED")
    cluster.show({1: state, 2: "RUNNING"}, restarts=1)
    cluster.stop(f"{SWEEP}.1")
    assert cluster.cancelled == ["24_1"]
    assert cluster.rows("state") == ["failed", "running"]
    assert cluster.rows("cause") == ["stopped by kim", ""]
    cluster.show({2: "RUNNING"})
    cluster.stop(SWEEP)
    sweep_folder.update_table(cluster.run_dir)
    assert cluster.rows("state") == ["failed", "running"]


def test_stopping_the_last_trial_that_waits_ends_the_sweep_at_once(cluster: Cluster) -> None:
    job_folder.journal_interruption(cluster.trial_dir(1), f"{SWEEP}.1", "24_1", 0, "REQUEUED")
    job_folder.journal_end(cluster.trial_dir(2), f"{SWEEP}.2", RunState.FAILED, "worker-0: exited with 1")
    cluster.show({1: "PENDING"}, restarts=1)
    (cluster.folder / "bin" / "scancel").write_text(
        f"#!/bin/sh\nsed -i s/PENDING/CANCELLED/ {cluster.folder}/shown-*\n"
    )
    cluster.stop(f"{SWEEP}.1")
    assert cluster.rows("state") == ["failed", "failed"]
    assert state_of(cluster.run_dir)[0] == "failed"


def test_a_forced_stop_leaves_the_ends_of_running_trials_to_their_jobs(cluster: Cluster) -> None:
    cluster.stop(SWEEP, force=True)
    assert cluster.cancelled == ["24"]
    assert cluster.rows("state") == ["running", "running"]
    assert state_of(cluster.run_dir)[0] == "stopping"
    cluster.show({1: "CANCELLED", 2: "CANCELLED"})
    (cluster.folder / "queue.json").unlink(missing_ok=True)
    assert not asyncio.run(cluster.runs().is_open(SWEEP))
    assert cluster.rows("state") == ["interrupted", "interrupted"]
    assert cluster.rows("cause") == ["the sweep was stopped"] * 2
    assert state_of(cluster.run_dir) == ("stopped", "stopped by kim")

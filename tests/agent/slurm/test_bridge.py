"""Tests of the ways to reach a run's primary: a step of its job, then SSH to its node, then its files alone."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from tests import REPOSITORY
from torchyard_agent import unix_socket_rpc
from torchyard_agent.journal import Journal
from torchyard_agent.keeper import control_socket
from torchyard_agent.protocol import paths
from torchyard_agent.protocol.run_states import RunState
from torchyard_agent.slurm import bridge_attempts, job_folder
from torchyard_agent.slurm.cluster_runs import ClusterRuns, ClusterTelemetry
from torchyard_agent.slurm.job_queue import JobQueue
from torchyard_agent.unix_socket_rpc import Connection

RUN = "20260101-000000-aaaa"
PROGRAM = """#!/bin/sh
echo "$@" >> {folder}/{name}.calls
test -e {folder}/{name}.works || {{ echo '{name}: error: no way' >&2; exit 1; }}
for command; do :; done
{run}
"""


class Cluster:
    """A login node whose Slurm is a few scripts, and a node whose keeper only answers `status` and `stop`.

    `srun` and `ssh` fail until `allow` is called for them. Then they run their command here.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.stops: list[dict[str, Any]] = []
        programs = folder / "bin"
        programs.mkdir()
        # srun gets the bridge's command as its last six arguments, ssh as one.
        runs = {"srun": 'while test $# -gt 6; do shift; done\nexec "$@"', "ssh": 'exec sh -c "$command"'}
        scripts = {name: PROGRAM.format(folder=folder, name=name, run=run) for name, run in runs.items()}
        job = "JobId=7 JobState=RUNNING Reason=None Requeue=1 Restarts=0 StartTime=1 NodeList=n1"
        scripts["scontrol"] = f"#!/bin/sh\necho {job}\n"
        scripts["squeue"] = f"#!/bin/sh\necho '7|torchyard-{RUN}|RUNNING|None|1|n1|'\n"
        scripts["scancel"] = f'#!/bin/sh\necho "$@" >> {folder}/scancel.calls\n'
        for name, text in scripts.items():
            (programs / name).write_text(text)
            (programs / name).chmod(0o755)
        self.run_dir = Path(paths.run_dir(str(folder), "hpc.1", RUN))
        self.job_dir = self.run_dir / "job"
        self.job_dir.mkdir(parents=True)
        journal = Journal(str(self.run_dir / "journal.jsonl"), lambda: None)
        journal.write("run_state", state=RunState.RUNNING.value)
        journal.close()
        started = {"nodes": {"hpc.1": "n1"}, "job_id": "7", "restart": 0}
        job_folder.write(str(self.job_dir), "started.json", started)
        job_folder.note_submission(str(self.job_dir), "7")

    def allow(self, program: str) -> None:
        (self.folder / f"{program}.works").touch()

    def calls(self, program: str) -> list[str]:
        file = self.folder / f"{program}.calls"
        return file.read_text().splitlines() if file.exists() else []

    def session(self) -> ClusterRuns:
        """Returns the runs of a new session, which shares only files with the earlier ones."""
        queue = JobQueue(paths.host_dir(str(self.folder), "hpc.1"))
        return ClusterRuns(str(self.folder), "hpc", "hpc.1", str(REPOSITORY / "agent"), queue)

    def serve(self, work: Coroutine[Any, Any, None]) -> None:
        """Performs `work` while the run's keeper is running."""

        async def status(connection: Connection, params: dict[str, Any]) -> Any:
            return {"state": "running", "metrics": {"worker-0": {"step": 3}}}

        async def stop(connection: Connection, params: dict[str, Any]) -> Any:
            self.stops.append(params)
            return {}

        async def serve() -> None:
            name = paths.random_socket(os.getuid())
            server = await unix_socket_rpc.serve(unix_socket_rpc.bind(name), {"status": status, "stop": stop}, set())
            assert control_socket.publish(str(self.run_dir), name)
            try:
                await work
            finally:
                server.close()

        asyncio.run(serve())


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    monkeypatch.setattr(bridge_attempts, "RETRY_S", 0.0)
    monkeypatch.setattr(bridge_attempts, "LATER_S", 0.0)
    return Cluster(tmp_path)


async def end(runs: ClusterRuns) -> None:
    """Closes a session, and waits until its bridges have exited."""
    runs.close()
    while runs._tasks:
        await asyncio.gather(*runs._tasks)


def test_only_steps_of_the_job_are_tried_at_first(cluster: Cluster) -> None:
    async def work() -> None:
        runs = cluster.session()
        for _ in range(3):
            assert (await runs.show(RUN))["telemetry_problem"] == ""
        cluster.allow("srun")
        shown = await runs.show(RUN)
        assert shown["metrics"] == {"worker-0": {"step": 3}}
        await end(runs)

    cluster.serve(work())
    assert len(cluster.calls("srun")) > 3
    assert "--overlap -N1 -n1 -u -Q --gres=none --mem=0 --mpi=none -w n1" in cluster.calls("srun")[0]
    assert cluster.calls("ssh") == []
    assert not (cluster.job_dir / bridge_attempts.FILE).exists()


def test_after_two_minutes_of_failed_steps_ssh_to_the_node_is_used(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.allow("ssh")

    async def work() -> None:
        runs = cluster.session()
        assert await runs.keeper(RUN) is None
        record = json.loads((cluster.job_dir / bridge_attempts.FILE).read_text())
        record["since"] -= bridge_attempts.STEP_ONLY_S
        job_folder.write(str(cluster.job_dir), bridge_attempts.FILE, record)
        # Each command is a session of its own.
        for _ in range(2):
            later = cluster.session()
            await later.forward("stop", {"run_id": RUN})
            assert (await later.show(RUN))["telemetry_problem"] == ""
            await end(later)
        await end(runs)

    cluster.serve(work())
    assert len(cluster.stops) == 2
    assert [call.split(" n1 ")[0] for call in cluster.calls("ssh")] == ["-T -o BatchMode=yes -o ConnectTimeout=10"] * 2
    assert cluster.calls("scancel") == []


def test_without_a_bridge_the_files_are_read_and_a_stop_is_a_signal_of_slurm(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(bridge_attempts.STEP_ONLY_VARIABLE, "0")
    why = "neither by a step of the job (srun: error: no way) nor by SSH (ssh: error: no way)"

    async def work() -> None:
        runs = cluster.session()
        shown = await runs.show(RUN)
        assert (shown["state"], shown["alive"], shown["metrics"]) == ("running", True, {})
        assert shown["telemetry_problem"].endswith(why)
        runs.listen(RUN)
        assert (await ClusterTelemetry(runs, "hpc.1").sample())["missing"] == {RUN: shown["telemetry_problem"]}
        await runs.forward("stop", {"run_id": RUN})
        cluster.allow("srun")
        assert (await runs.show(RUN))["telemetry_problem"] == ""
        assert (await ClusterTelemetry(runs, "hpc.1").sample())["missing"] == {}
        await end(runs)

    cluster.serve(work())
    assert cluster.calls("scancel") == ["-b -s USR2 7"]


def test_the_error_of_a_bridge_is_the_line_that_gives_the_reason() -> None:
    ended = "the run's keeper does not answer: Connection refused\nsrun: error: n1: task 0: Exited with exit code 1\n"
    assert bridge_attempts.error_in(ended) == "the run's keeper does not answer: Connection refused"
    assert bridge_attempts.error_in("srun: forcing job termination\n") == ""


def test_failed_attempts_are_rarer_after_ssh_has_failed_and_do_not_count_for_the_next_start(tmp_path: Path) -> None:
    now = 1000.0
    failed = bridge_attempts.FailedAttempts("7/0", now - 10, now, "no step", "")
    assert not failed.is_due(now + 1)
    assert failed.is_due(now + 2)
    assert not failed.allows_ssh(now)
    assert failed.allows_ssh(now + 110)
    blind = failed._replace(ssh="refused")
    assert not blind.is_due(now + 59)
    assert blind.is_due(now + 60)
    blind.write(str(tmp_path))
    assert bridge_attempts.FailedAttempts.read(str(tmp_path), "7/0") == blind
    assert bridge_attempts.FailedAttempts.read(str(tmp_path), "7/1") is None

"""Tests of the batch program with real keepers and ranks on this host, and stand-ins for `srun` and `scontrol`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.agent.keeper.keeper_cluster import AGENT, CLUSTER, python, replica
from tests.waiting import wait_until
from torchyard_agent.protocol import paths

SRUN = """#!/bin/sh
echo $$ > {folder}/srun.pid
while case $1 in /*) false;; *) true;; esac; do shift; done
SLURMD_NODENAME=n1 SLURM_LAUNCH_NODE_IPADDR=127.0.0.1 exec "$@" 2>> {folder}/keeper.log
"""
SCONTROL = """#!/bin/sh
case "$*" in
*hostnames*) echo n1 n2;;
*config*) echo 'KillWait                = 8 sec';;
requeue*) echo "$@" >> {folder}/requeued;;
*) cat {folder}/shown;;
esac
"""
RUNNING = "JobId=7 JobState=RUNNING Reason=None Restarts=0 Requeue=1 PreemptTime=None EndTime={end}"
REQUEUED = "JobId=7 JobState=COMPLETING Reason=None Restarts=1 Requeue=1 PreemptTime=None EndTime={end}"
SAVES = """
import os, pathlib, signal, time
asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
print("ready", flush=True)
while not asked:
    time.sleep(0.02)
end = pathlib.Path(os.environ["HOME"], "saved")
while not end.exists():
    print("grace", pathlib.Path(os.environ["TORCHYARD_STOP"]).read_text() if os.path.exists(
        os.environ["TORCHYARD_STOP"]) else "unknown", flush=True)
    time.sleep(0.05)
"""
"""A program that saves until the file `saved` exists in its home, and prints how much time it has."""


class Job:
    """A run of one rank in a job, of which the batch program runs on this host."""

    def __init__(self, folder: Path):
        self.run_id = f"run-{uuid.uuid4().hex[:8]}"
        self.folder = folder
        self.run_dir = Path(paths.run_dir(str(folder / "agent"), "hpc.1", self.run_id))
        self.job_dir = self.run_dir / "job"
        self.job_dir.mkdir(parents=True)
        programs = folder / "bin"
        programs.mkdir()
        for name, text in (("srun", SRUN), ("scontrol", SCONTROL)):
            (programs / name).write_text(text.format(folder=folder))
            (programs / name).chmod(0o755)
        (self.job_dir / "job.json").write_text(json.dumps(self._plan()))
        self._processes: list[subprocess.Popen[bytes]] = []

    def _plan(self) -> dict[str, Any]:
        prepare = {
            **{"run_id": self.run_id, "name": "test", "host": "hpc.1", "secret": "", "snapshot": None, "gpus": []},
            **{"ports": 1, "port_range": None, "data_address": "127.0.0.1", "interface": None, "towards": None},
            **{"record": {}, "continues": True},
        }
        policy = {
            **{"ends_with": "trainers", "stop_grace_s": 30.0, "failure_grace_s": 2.0, "host_wait_s": 60.0},
            **{"max_restarts": 0, "min_replicas": {}},
        }
        start = {
            **{"members": [], "cluster": {**CLUSTER, "run_id": self.run_id}, "policy": policy, "setup": []},
            **{"replicas": [replica("worker-0", "hpc.1", python(SAVES))], "secrets": {}},
        }
        return {
            **{"run_id": self.run_id, "agent_dir": str(self.folder / "agent"), "archive": str(AGENT)},
            **{"components": [{"slots": ["hpc.1"], "options": []}], "prepare": {"hpc.1": prepare}, "start": start},
            **{"gpus": {}, "srun_options": []},
        }

    def begin(self) -> subprocess.Popen[bytes]:
        environment = {
            **os.environ,
            **{"PATH": f"{self.folder / 'bin'}:/usr/bin:/bin", "HOME": str(self.folder)},
            **{"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n1", "TORCHYARD_KEEPER_LEASE_S": "5"},
        }
        command = [sys.executable, "-I", "-S", str(AGENT / "torchyard_agent" / "__main__.py")]
        with (self.job_dir / "batch.log").open("ab") as log:
            process = subprocess.Popen(
                [*command, "slurm-batch", str(self.job_dir)], env=environment, stdout=log, stderr=log
            )
        self._processes.append(process)
        return process

    def show(self, line: str, end_in_s: float) -> None:
        """Sets what `scontrol show job` prints."""
        (self.folder / "shown").write_text(line.format(end=int(time.time() + end_in_s)) + "\n")

    @property
    def keeper(self) -> int:
        """The PID of the keeper, which takes the place of the stand-in for `srun`."""
        return int((self.folder / "srun.pid").read_text())

    def output(self) -> list[str]:
        log = self.run_dir / "logs" / paths.log_name("worker-0", 0)
        return log.read_text().splitlines() if log.exists() else []

    def graces(self) -> list[float]:
        """Returns the times in seconds that the rank was given, in the order of their changes."""
        found = [float(line.split()[1]) for line in self.output() if line.startswith("grace ") and "un" not in line]
        return list(dict.fromkeys(found))

    def journal(self) -> list[dict[str, Any]]:
        file = self.run_dir / "journal.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def wait(self, condition: Any) -> None:
        wait_until(condition, what=self.log)

    def wait_for_requeue(self) -> None:
        self.wait(lambda: (self.folder / "requeued").exists())
        assert (self.folder / "requeued").read_text() == "requeue 7\n"

    def log(self) -> str:
        logs = [self.job_dir / "batch.log", self.folder / "keeper.log"]
        return "\n".join(path.read_text() for path in logs if path.exists())

    def close(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.kill()  # The keeper's connection breaks, and Slurm's task of killing it is the test's.
                process.wait()
        if (self.folder / "srun.pid").exists() and self._processes:
            try:
                os.kill(self.keeper, signal.SIGKILL)
            except ProcessLookupError:
                return


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    made = Job(tmp_path)
    made.show(RUNNING, 3600.0)
    yield made
    made.close()


def test_a_job_that_slurm_ends_saves_within_kill_wait_and_not_longer(job: Job) -> None:
    batch = job.begin()
    job.wait(lambda: "ready" in job.output())
    job.show(REQUEUED, 0.0)
    began = time.monotonic()
    batch.send_signal(signal.SIGTERM)
    job.wait_for_requeue()
    assert time.monotonic() - began < 20, "and not the grace of 30 s"
    *_, last = job.graces()
    assert 3.0 < last <= 6.0  # KillWait without the reserve
    events = job.journal()
    assert [event["cause"] for event in events if event["event"] == "interrupted"] == ["REQUEUED"]


@pytest.mark.parametrize(("left_s", "least", "most"), [(12.0, 7.0, 10.0), (600.0, 30.0, 30.0)])
def test_a_keeper_that_alone_is_signalled_saves_until_the_end_of_the_grace_time(
    job: Job, left_s: float, least: float, most: float
) -> None:
    """A preemption with GraceTime moves the job's end, and signals only the steps."""
    job.begin()
    job.wait(lambda: "ready" in job.output())
    job.show(RUNNING, left_s)
    os.kill(job.keeper, signal.SIGTERM)
    job.wait(lambda: job.graces() and "time left for saving" in job.log())
    job.wait(lambda: most == 30.0 or job.graces()[-1] < 30.0)
    assert least <= job.graces()[-1] <= most, job.graces()
    (job.folder / "saved").touch()
    job.wait_for_requeue()


def test_a_notice_before_the_time_limit_leaves_the_whole_grace_however_short_kill_wait_is(job: Job) -> None:
    batch = job.begin()
    job.wait(lambda: "ready" in job.output())
    job.show(RUNNING, 60.0)
    batch.send_signal(signal.SIGUSR1)
    job.wait(lambda: job.graces() and "time left for saving" in job.log())
    assert job.graces() == [30.0]
    (job.folder / "saved").touch()
    job.wait_for_requeue()
    assert [event["cause"] for event in job.journal() if event["event"] == "interrupted"] == ["TIMEOUT"]


@pytest.mark.parametrize("is_keeper_signalled", [False, True])
def test_a_job_that_is_taken_before_its_run_has_begun_keeps_the_runs_folder_and_continues(
    job: Job, is_keeper_signalled: bool
) -> None:
    """The keeper of one of two nodes is prepared, and the other one has yet to start."""
    checkpoint = job.run_dir / "outputs" / "checkpoints" / "of-an-earlier-start"
    checkpoint.mkdir(parents=True)
    plan = json.loads((job.job_dir / "job.json").read_text())
    plan["components"][0]["slots"].append("hpc.2")
    (job.job_dir / "job.json").write_text(json.dumps(plan))
    batch = job.begin()
    job.wait(lambda: (job.run_dir / "run.json").exists())
    if is_keeper_signalled:
        os.kill(job.keeper, signal.SIGTERM)
    else:
        batch.send_signal(signal.SIGTERM)
    job.wait_for_requeue()
    assert checkpoint.is_dir()
    assert not any(event["event"] == "run_ended" for event in job.journal())

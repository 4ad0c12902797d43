"""Tests of the batch program with real keepers and ranks on this host, and stand-ins for `srun` and `scontrol`."""

from __future__ import annotations

import contextlib
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
echo $$ > {folder}/srun-$SLURM_JOB_ID.pid
while case $1 in /*) false;; *) true;; esac; do shift; done
SLURMD_NODENAME=n1 SLURM_LAUNCH_NODE_IPADDR=127.0.0.1 exec "$@" 2>> {folder}/keeper.log
"""
SRUN_WHICH_LOSES_ITS_NODE = """#!/bin/sh
while case $1 in /*) false;; *) true;; esac; do shift; done
SLURMD_NODENAME=n1 SLURM_LAUNCH_NODE_IPADDR=127.0.0.1 "$@" 2>> {folder}/keeper.log &
echo $! > {folder}/srun-$SLURM_JOB_ID.pid
until [ -e {folder}/lost ]; do sleep 0.05; done
"""
"""Ends with 0 as soon as the file `lost` exists, whatever the keeper does."""
SCONTROL = """#!/bin/sh
case "$*" in
*hostnames*) echo n1 n2;;
*config*) echo 'KillWait                = 8 sec';;
requeue*) echo "$@" >> {folder}/requeued;;
*) cat {folder}/shown-$(echo "$*" | tr -dc 0-9);;
esac
"""
SCANCEL = """#!/bin/sh
echo "$@" >> {folder}/cancelled
"""
RUNNING = "JobState=RUNNING Reason=None Restarts=0 Requeue=1 PreemptTime=None EndTime={end}"
REQUEUED = "JobState=COMPLETING Reason=None Restarts=1 Requeue=1 PreemptTime=None EndTime={end}"
IN_THE_QUEUE = "JobState=PENDING Reason=BeginTime Restarts=1 Requeue=1 PreemptTime=None EndTime=Unknown"
NODE_FAILURE = "error: *** JOB 7 ON n1 CANCELLED AT 2026-11-28T20:31:44 DUE TO NODE FAILURE, SEE SLURMCTLD LOG ***\n"
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


WORKS = """
import os, pathlib, time
print("started", os.environ["TORCHYARD_GENERATION"], os.environ.get("WHERE"), os.getpid(), flush=True)
end = pathlib.Path(os.environ["HOME"], "end")
while not end.exists():
    time.sleep(0.02)
"""
FIRST = "7"
"""The ID of the job with the primary. Those of the jobs of worker groups follow."""


class Job:
    """The jobs of a run, one with each worker, of which the batch programs run on this host.

    Args:
        folder: The folder for all files.
        program: The program of the workers.
        groups: The number of jobs of worker groups besides the first job.
    """

    def __init__(self, folder: Path, program: str = SAVES, groups: int = 0):
        self.run_id = f"run-{uuid.uuid4().hex[:8]}"
        self.folder = folder
        self._slots = [f"hpc.{number + 1}" for number in range(groups + 1)]
        self.run_dir = self.run_dir_of("hpc.1")
        self.job_dir = self.run_dir / "job"
        self.job_dir.mkdir(parents=True)
        programs = folder / "bin"
        programs.mkdir()
        for name, text in (("srun", SRUN), ("scontrol", SCONTROL), ("scancel", SCANCEL)):
            (programs / name).write_text(text.format(folder=folder))
            (programs / name).chmod(0o755)
        (self.job_dir / "job.json").write_text(json.dumps(self._plan(program)))
        jobs = {f"group-{number}": [str(int(FIRST) + number)] for number in range(1, groups + 1)}
        (self.job_dir / "submitted.json").write_text(json.dumps({"jobs": [FIRST], "groups": jobs}))
        self._processes: list[subprocess.Popen[bytes]] = []
        self.environment: dict[str, str] = {}
        """Additions to the environment of batch programs."""
        self.show(RUNNING, 3600.0)

    def run_dir_of(self, slot: str) -> Path:
        return Path(paths.run_dir(str(self.folder / "agent"), slot, self.run_id))

    def _plan(self, program: str) -> dict[str, Any]:
        prepare = {
            **{"run_id": self.run_id, "name": "test", "secret": "", "snapshot": None, "gpus": []},
            **{"ports": 1, "port_range": None, "data_address": "127.0.0.1", "interface": None, "towards": None},
            **{"record": {}, "continues": True},
        }
        policy = {
            **{"ends_with": "trainers", "stop_grace_s": 30.0, "failure_grace_s": 2.0, "host_wait_s": 60.0},
            **{"max_restarts": 0, "min_replicas": {"worker": 1}},
        }
        replicas = []
        for number, slot in enumerate(self._slots):
            where = f"@address:{slot}@:@port:{slot}:0@"
            changes: dict[str, Any] = {"gang": f"group-{number}", "address": where}
            name = f"worker-{number}"
            changes["env"] = {"TORCHYARD_REPLICA": name, "WHERE": where}
            replicas.append(replica(name, slot, python(program), **changes))
        start = {
            **{"members": [], "cluster": {**CLUSTER, "run_id": self.run_id}, "policy": policy, "setup": []},
            **{"replicas": replicas, "secrets": {}},
        }
        parts = [{"components": [{"slots": [slot], "options": []}]} for slot in self._slots]
        return {
            **{"run_id": self.run_id, "agent_dir": str(self.folder / "agent"), "archive": str(AGENT)},
            **{"prepare": {slot: {**prepare, "host": slot} for slot in self._slots}, "start": start},
            **{"gpus": {slot: [] for slot in self._slots}, "srun_options": []},
            **{**parts[0], "groups": {f"group-{number}": part for number, part in enumerate(parts) if number}},
        }

    def begin(self, group: int = 0, restart: int = 0) -> subprocess.Popen[bytes]:
        """Starts the batch program of the first job, or of the job of a worker group."""
        job_id = str(int(FIRST) + group)
        environment = {
            **os.environ,
            **{"PATH": f"{self.folder / 'bin'}:/usr/bin:/bin", "HOME": str(self.folder)},
            **{"SLURM_JOB_ID": job_id, "SLURM_JOB_NODELIST": "n1", "SLURM_RESTART_COUNT": str(restart)},
            **self.environment,
        }
        command = [sys.executable, "-I", "-S", str(AGENT / "torchyard_agent" / "__main__.py"), "slurm-batch"]
        command += [str(self.job_dir), *([f"group-{group}"] if group else [])]
        with (self.job_dir / "batch.log").open("ab") as log:
            process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        self._processes.append(process)
        return process

    def show(self, line: str, end_in_s: float, group: int = 0) -> None:
        """Sets what `scontrol show job` prints."""
        shown = self.folder / f"shown-{int(FIRST) + group}"
        shown.write_text(line.format(end=int(time.time() + end_in_s)) + "\n")

    def keeper(self, group: int = 0) -> int:
        """Returns the PID of the keeper, which takes the place of the stand-in for `srun`."""
        return int((self.folder / f"srun-{int(FIRST) + group}.pid").read_text())

    def output(self, group: int = 0) -> list[str]:
        log = self.run_dir_of(self._slots[group]) / "logs" / paths.log_name(f"worker-{group}", 0)
        return log.read_text().splitlines() if log.exists() else []

    def graces(self) -> list[float]:
        """Returns the times in seconds that the rank was given, in the order of their changes."""
        found = [float(line.split()[1]) for line in self.output() if line.startswith("grace ") and "un" not in line]
        return list(dict.fromkeys(found))

    def replica_states(self, name: str) -> list[str]:
        found = [event for event in self.journal() if event["event"] == "replica_state"]
        return [event["state"] for event in found if event["replica"] == name]

    def run_states(self) -> list[str]:
        return [event["state"] for event in self.journal() if event["event"] == "run_state"]

    def journal(self) -> list[dict[str, Any]]:
        file = self.run_dir / "journal.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def wait(self, condition: Any) -> None:
        wait_until(condition, what=self.log)

    def wait_for_requeue(self, group: int = 0) -> None:
        line = f"requeue {int(FIRST) + group}"
        requeued = self.folder / "requeued"
        self.wait(lambda: requeued.exists() and requeued.read_text().splitlines().count(line) == 1)

    def log(self) -> str:
        logs = [self.job_dir / "batch.log", self.folder / "keeper.log", self.run_dir / "journal.jsonl"]
        return "\n".join(path.read_text() for path in logs if path.exists())

    def close(self) -> None:
        """Kills all processes, as Slurm does at a job's end."""
        for process in self._processes:
            if process.poll() is None:
                process.kill()
                process.wait()
        for file in self.folder.glob("srun-*.pid"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(file.read_text()), signal.SIGKILL)


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    made = Job(tmp_path)
    yield made
    made.close()


@pytest.fixture
def groups(tmp_path: Path) -> Iterator[Job]:
    """A run with a job for each of three worker groups."""
    made = Job(tmp_path, WORKS, groups=2)
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


def test_a_node_that_is_set_down_interrupts_the_run_although_srun_ends_before_the_keeper_is_signalled(
    job: Job,
) -> None:
    (job.folder / "bin" / "srun").write_text(SRUN_WHICH_LOSES_ITS_NODE.format(folder=job.folder))
    batch = job.begin()
    job.wait(lambda: "ready" in job.output())
    job.show(IN_THE_QUEUE, 0.0)
    with (job.job_dir / "batch.log").open("a") as log:
        log.write(NODE_FAILURE)
    (job.folder / "lost").touch()
    time.sleep(0.3)  # Slurm tells srun first.
    os.kill(job.keeper(), signal.SIGTERM)
    job.wait(job.graces)
    (job.folder / "saved").touch()
    job.wait(lambda: any(event["event"] == "interrupted" for event in job.journal()))
    job.wait(lambda: "the job is" in job.log())
    assert [event["cause"] for event in job.journal() if event["event"] == "interrupted"] == ["NODE_FAIL"]
    assert job.run_states()[-1] == "waiting"
    assert not any(event["event"] == "run_ended" for event in job.journal())
    assert not (job.folder / "requeued").exists(), "the job may already run again, which a requeue would interrupt"
    job.wait(lambda: batch.poll() is not None)  # Otherwise, the job could not start again on this node.


@pytest.mark.parametrize(("shown", "ends"), [(IN_THE_QUEUE, False), (RUNNING, True)])
def test_keepers_that_end_without_a_report_end_the_run_unless_slurm_has_taken_its_nodes(
    job: Job, shown: str, ends: bool
) -> None:
    job.begin()
    job.wait(lambda: "ready" in job.output())
    job.show(shown, 3600.0)
    os.kill(job.keeper(), signal.SIGKILL)
    job.wait(lambda: job.run_states()[-1] == ("failed" if ends else "waiting"))
    assert [event["event"] for event in job.journal()].count("interrupted") == (not ends)


def test_a_run_that_is_stopped_while_it_saves_for_slurm_is_not_continued(job: Job) -> None:
    batch = job.begin()
    job.wait(lambda: "ready" in job.output())
    job.show(REQUEUED, 0.0)
    batch.send_signal(signal.SIGTERM)
    job.wait(lambda: job.run_states()[-1] == "stopping")
    batch.send_signal(signal.SIGUSR2)
    job.wait(lambda: "'op': 'stop'" in job.log())
    (job.folder / "saved").touch()
    assert batch.wait(60) == 0
    assert job.run_states()[-1] == "stopped"
    assert job.begin(restart=1).wait(60) == 0
    assert job.journal()[-1]["event"] == "run_ended"


@pytest.mark.parametrize(("left_s", "least", "most"), [(12.0, 7.0, 10.0), (600.0, 30.0, 30.0)])
def test_a_keeper_that_alone_is_signalled_saves_until_the_end_of_the_grace_time(
    job: Job, left_s: float, least: float, most: float
) -> None:
    """A preemption with GraceTime moves the job's end, and signals only the steps."""
    job.begin()
    job.wait(lambda: "ready" in job.output())
    job.show(RUNNING, left_s)
    os.kill(job.keeper(), signal.SIGTERM)
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
        os.kill(job.keeper(), signal.SIGTERM)
    else:
        batch.send_signal(signal.SIGTERM)
    job.wait_for_requeue()
    assert checkpoint.is_dir()
    assert not any(event["event"] == "run_ended" for event in job.journal())


def test_a_stop_whose_signal_reached_no_keeper_ends_the_run_at_the_next_start(job: Job) -> None:
    (job.job_dir / "stop.json").write_text(json.dumps({"reason": "stopped by kim"}))
    assert job.begin(restart=1).wait(60) == 0
    assert (job.journal()[-1]["state"], job.journal()[-1]["reason"]) == ("stopped", "stopped by kim")
    assert job.output() == []


@pytest.fixture
def plain(tmp_path: Path) -> Iterator[Job]:
    """A job whose program ends at once at SIGTERM."""
    made = Job(tmp_path, WORKS)
    yield made
    made.close()


def test_a_plain_program_that_ends_at_slurm_s_signal_before_its_keeper_gets_it_is_requeued(plain: Job) -> None:
    batch = plain.begin()
    plain.wait(plain.output)
    plain.show(REQUEUED, 0.0)
    os.kill(int(plain.output()[0].split()[-1]), signal.SIGTERM)
    time.sleep(0.3)  # Slurm signals the processes of a step one after another.
    os.kill(plain.keeper(), signal.SIGTERM)
    batch.send_signal(signal.SIGTERM)
    plain.wait_for_requeue()
    assert [event["cause"] for event in plain.journal() if event["event"] == "interrupted"] == ["REQUEUED"]
    assert not any(event["event"] == "run_ended" for event in plain.journal())


def test_a_program_that_is_ended_by_another_sigterm_has_failed(plain: Job) -> None:
    plain.begin()
    plain.wait(plain.output)
    os.kill(int(plain.output()[0].split()[-1]), signal.SIGTERM)
    plain.wait(lambda: plain.run_states()[-1:] == ["failed"])


def end(groups: Job, batch: subprocess.Popen[bytes], group: int, *, restarts: int) -> None:
    """Ends the job of a worker group as Slurm does: it is cancelled, or requeued if `restarts` is 1."""
    line = "JobState=COMPLETING Reason=None Restarts={} Requeue=1 PreemptTime=None EndTime={{end}}"
    groups.show(line.format(restarts), 0.0, group)
    os.kill(groups.keeper(group), signal.SIGTERM)
    batch.send_signal(signal.SIGTERM)


def test_groups_whose_jobs_are_cancelled_or_preempted_leave_and_join_while_the_others_train(groups: Job) -> None:
    first = groups.begin()
    groups.wait(lambda: "running" in groups.run_states())  # `min_replicas` are there without the other groups.
    batches = {number: groups.begin(number) for number in (1, 2)}
    groups.wait(lambda: groups.output(1) and groups.output(2))
    assert [groups.output(number)[0].split()[1] for number in (1, 2)] == ["1", "1"]
    assert all(groups.output(number)[0].split()[2].startswith("127.0.0.1:") for number in (1, 2))
    groups.wait(lambda: all(groups.replica_states(f"worker-{number}")[-1] == "running" for number in (1, 2)))

    end(groups, batches[1], 1, restarts=0)
    groups.wait(lambda: groups.replica_states("worker-1")[-1] == "lost")
    assert batches[1].wait(60) == 0
    (lost,) = [event for event in groups.journal() if event.get("state") == "lost"]
    assert lost["reason"] == "hpc.2 has left: Slurm ends its job"

    end(groups, batches[2], 2, restarts=1)
    groups.wait_for_requeue(2)
    assert groups.replica_states("worker-2")[-1] == "lost"
    batches[2].kill()
    batches[2].wait()
    groups.show(RUNNING, 3600.0, 2)
    groups.begin(2, restart=1)
    groups.wait(lambda: len(groups.output(2)) == 2)
    assert groups.output(2)[1].split()[1] == "2"

    assert groups.replica_states("worker-0")[-1] == "running"
    assert len(groups.output()) == 1, "the first group was never interrupted"
    assert "restarting" not in groups.run_states()
    (groups.folder / "end").touch()
    assert first.wait(60) == 0, groups.log()
    assert groups.run_states()[-1] == "succeeded"
    assert (groups.folder / "cancelled").read_text() == "--state=PENDING 8\n--state=PENDING 9\n"
    assert not (groups.job_dir / "gang.json").exists()


def test_a_group_whose_first_job_is_requeued_gives_its_nodes_back_until_that_runs_again(groups: Job) -> None:
    first, second = groups.begin(), groups.begin(1)
    groups.wait(lambda: groups.output(1))
    groups.wait(lambda: groups.replica_states("worker-1")[-1] == "running")
    groups.show(REQUEUED, 0.0)
    first.send_signal(signal.SIGTERM)
    groups.show(RUNNING, 3600.0, 1)
    groups.wait_for_requeue(1)
    groups.wait_for_requeue()
    for batch in (first, second):
        batch.kill()
        batch.wait()
    assert not any(event["event"] == "run_ended" for event in groups.journal())
    groups.show("JobState=PENDING Reason=Priority Restarts=1 Requeue=1 PreemptTime=None EndTime=Unknown", 0.0)
    (groups.folder / "requeued").unlink()
    third = groups.begin(1, restart=1)
    groups.wait_for_requeue(1)  # The first job waits, so the nodes of the group would be idle.
    third.kill()
    third.wait()
    groups.show(RUNNING, 3600.0)
    groups.begin(restart=1)
    groups.begin(1, restart=2)
    groups.wait(lambda: len(groups.output(1)) == 2 and len(groups.output()) == 2)


def test_a_group_that_cannot_join_fails_with_a_problem_and_is_not_requeued_again_and_again(groups: Job) -> None:
    groups.begin()
    groups.wait(lambda: (groups.job_dir / "gang.json").exists())
    gang = json.loads((groups.job_dir / "gang.json").read_text())
    (groups.job_dir / "gang.json").write_text(json.dumps({**gang, "secret": "00" * 32}))
    groups.environment["TORCHYARD_KEEPER_JOIN_WITHIN_S"] = "0.5"
    assert groups.begin(1).wait(90) == 1
    problem = json.loads((groups.job_dir / "group-1.json").read_text())["problem"]
    assert problem == "its keepers could not join the run: see group-1-*.log"
    assert not (groups.folder / "requeued").exists()


def test_the_job_of_a_group_ends_with_the_first_one(groups: Job) -> None:
    groups.show("JobState=CANCELLED Reason=None Restarts=0 Requeue=1 PreemptTime=None EndTime={end}", 0.0)
    assert groups.begin(1).wait(60) == 0

"""Tests of the jobs of a sweep's trials with real keepers, ranks and Optuna, and stand-ins for Slurm's commands."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.agent.keeper.keeper_cluster import AGENT, CLUSTER, replica
from tests.waiting import wait_until
from torchyard_agent.protocol import paths
from torchyard_agent.protocol.run_states import RunState
from torchyard_agent.slurm import job_folder, sweep_folder
from torchyard_core.sweeps.search_file import search_from_text

SWEEP = "20260101-000000-aaaa"
TOKEN = "trial-run-5e5e"
ARRAY = "24"
SRUN = """#!/bin/sh
echo $$ > {folder}/srun-$SLURM_ARRAY_TASK_ID.pid
while case $1 in /*) false;; *) true;; esac; do shift; done
SLURMD_NODENAME=n1 SLURM_LAUNCH_NODE_IPADDR=127.0.0.1 exec "$@" 2>> {folder}/keeper.log
"""
SCONTROL = """#!/bin/sh
case "$*" in
*hostnames*) echo n1;;
*config*) echo 'KillWait                = 8 sec';;
requeue*) echo "$@" >> {folder}/requeued;;
update*) echo "$@" >> {folder}/updated;;
*) cat {folder}/shown;;
esac
"""
SCANCEL = """#!/bin/sh
echo "$@" >> {folder}/cancelled
"""
RUNNING = "JobId=24 ArrayJobId=24 ArrayTaskId=1 JobState=RUNNING Reason=None Restarts=0 Requeue=1 PreemptTime=None\n"
REQUEUED = RUNNING.replace("RUNNING", "COMPLETING").replace("Restarts=0", "Restarts=1")
TRIAL = """
import json, os, signal, socket, sys, time
trial, x, shared = sys.argv[1], float(sys.argv[2]), sys.argv[3]
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
def report(**metrics):
    address = os.environ["TORCHYARD_REPORT"].replace("@", "\\0", 1)
    message = {"replica": os.environ["TORCHYARD_REPLICA"], "local_rank": 0, "metrics": metrics}
    socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(json.dumps(message).encode(), address)
assert json.loads(os.environ["CLUSTER_SPEC"])["task"]["trial"] == trial
assert os.environ["KEY"] == "value"
with open(os.path.join(shared, "starts"), "a") as starts:
    starts.write(trial + "\\n")
report(step=1, loss=(x - 1) ** 2 + 100 * (trial == sys.argv[4]))
while not os.path.exists(os.path.join(shared, "go-" + trial)):
    time.sleep(0.02)
"""
GRID = """\
version: 1
parameters: {x: {distribution: categorical, values: [0, 3]}}
objective: {metric: loss, goal: minimize}
sampler: {kind: grid}
parallel: 2
"""
RANDOM = """\
version: 1
parameters: {x: {distribution: uniform, low: 2, high: 3}}
objective: {metric: loss, goal: minimize}
sampler: {kind: random, seed: 1}
trials: %d
"""


class Sweep:
    """A sweep whose jobs' batch programs run on this host.

    Args:
        folder: The folder for all files.
        search: The text of the search file.
        changes: Changes of the sweep in `job.json`.
        gpus: The number of GPUs of a trial, of which Slurm gives none.
        worse: The trial whose loss is worse than that of the others.
        command: The program.
    """

    def __init__(
        self,
        folder: Path,
        search: str,
        changes: dict[str, Any] | None = None,
        gpus: int = 0,
        worse: str = "",
        command: str = TRIAL,
    ):
        found = search_from_text(search).search
        assert found is not None
        self.folder = folder
        self.run_dir = self.run_dir_of(SWEEP)
        self.job_dir = self.run_dir / "job"
        self.job_dir.mkdir(parents=True)
        programs = folder / "bin"
        programs.mkdir()
        for name, text in (("srun", SRUN), ("scontrol", SCONTROL), ("scancel", SCANCEL)):
            (programs / name).write_text(text.format(folder=folder))
            (programs / name).chmod(0o755)
        (folder / "shown").write_text(RUNNING)
        argv = [sys.executable, "-S", "-c", command, "{trial}", "{params.x}", str(folder), worse]
        prepare = {
            **{"run_id": TOKEN, "name": "s trial", "secret": "", "snapshot": None, "gpus": [], "host": "hpc.1"},
            **{"ports": 1, "port_range": None, "data_address": "127.0.0.1", "interface": None, "towards": None},
            "record": {"replicas": [{"name": "worker-0", "host": "hpc.1"}], "sweep_run": SWEEP, "lineage": TOKEN},
            "continues": True,
        }
        policy = {
            **{"ends_with": "trainers", "stop_grace_s": 10.0, "failure_grace_s": 2.0, "host_wait_s": 60.0},
            **{"max_restarts": 0, "min_replicas": {}},
        }
        address = "@address:hpc.1@:@port:hpc.1:0@"
        job = {
            **{"agent_dir": str(folder / "agent"), "archive": str(AGENT), "run_id": SWEEP, "srun_options": []},
            **{"components": [{"slots": ["hpc.1"], "options": []}], "groups": {}},
            **{"prepare": {"hpc.1": prepare}, "gpus": {"hpc.1": [f"@gpu:hpc.1:{number}@" for number in range(gpus)]}},
            "start": {
                **{"members": [], "cluster": {**CLUSTER, "run_id": TOKEN}, "policy": policy, "setup": []},
                **{"replicas": [replica("worker-0", "hpc.1", argv, address=address)], "secrets": {}},
            },
            "sweep": {
                **{"run_id": SWEEP, "name": "s", "run_token": TOKEN, "search": found.as_message(), "study": ""},
                **{"python": sys.executable, "setup": [], "env": {}, "is_array": True},
                **{"jobs": found.number_of_trials, "parallel": found.parallel, **(changes or {})},
            },
        }
        job_folder.write(str(self.job_dir), "job.json", job)
        job_folder.write(str(self.job_dir), "secrets.json", {"KEY": "value"})
        job_folder.write(str(self.job_dir), "submitted.json", {"jobs": [ARRAY], "at": 0.0})
        record = {"replicas": [{"name": "coordinator-0", "host": "hpc.1", "gpus": []}], "sweep": search}
        job_folder.write(str(self.run_dir), "run.json", {"run_id": SWEEP, "host": "hpc.1", "record": record})
        job_folder.journal_state(str(self.run_dir), RunState.WAITING, "job 24 waits in the queue")
        self._processes: list[subprocess.Popen[bytes]] = []

    def run_dir_of(self, run_id: str) -> Path:
        return Path(paths.run_dir(str(self.folder / "agent"), "hpc.1", run_id))

    def begin(self, number: int, restart: int = 0) -> subprocess.Popen[bytes]:
        """Starts the batch program of a job."""
        environment = {
            **os.environ,
            **{"PATH": f"{self.folder / 'bin'}:/usr/bin:/bin", "HOME": str(self.folder)},
            **{"SLURM_JOB_ID": f"3{number}", "SLURM_ARRAY_JOB_ID": ARRAY, "SLURM_ARRAY_TASK_ID": str(number)},
            **{"SLURM_JOB_NODELIST": "n1", "SLURM_RESTART_COUNT": str(restart)},
        }
        command = [sys.executable, "-I", "-S", str(AGENT / "torchyard_agent" / "__main__.py"), "slurm-trial"]
        with (self.job_dir / f"element-{number}.log").open("ab") as log:
            process = subprocess.Popen(
                [*command, str(self.job_dir), str(number)], env=environment, stdout=log, stderr=log
            )
        self._processes.append(process)
        return process

    def go(self, *trials: int) -> None:
        for trial in trials:
            (self.folder / f"go-{trial}").touch()

    @property
    def starts(self) -> list[str]:
        file = self.folder / "starts"
        return file.read_text().split() if file.exists() else []

    @property
    def table(self) -> dict[str, Any]:
        file = Path(sweep_folder.outputs(str(self.run_dir)), sweep_folder.TABLE)
        found: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {"trials": []}
        return found

    def rows(self, name: str) -> list[Any]:
        return [row[name] for row in self.table["trials"]]

    @property
    def state(self) -> tuple[str, str]:
        view = job_folder.view(str(self.run_dir), SWEEP)
        return view["state"], view["reason"]

    def journal(self, run_id: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.run_dir_of(run_id) / "journal.jsonl").read_text().splitlines()]

    def lines(self, file: str) -> list[str]:
        path = self.folder / file
        return path.read_text().splitlines() if path.exists() else []

    def wait(self, condition: Any) -> None:
        wait_until(condition, what=self.log)

    def finish(self, *processes: subprocess.Popen[bytes]) -> list[int]:
        self.wait(lambda: all(process.poll() is not None for process in processes))
        return [process.returncode for process in processes]

    def log(self) -> str:
        logs = [*sorted(self.job_dir.glob("*.log")), self.folder / "keeper.log"]
        return "\n".join(path.read_text()[-4000:] for path in logs if path.exists()) + f"\n{self.table}\n{self.state}"

    @property
    def sweep_log(self) -> str:
        return (self.run_dir / "logs" / "coordinator-0.log").read_text()

    def kill(self, number: int, process: subprocess.Popen[bytes]) -> None:
        """Kills the batch program and the keeper of a job, as the loss of its node does.

        The batch program is not killed while it holds the sweep's lock, because the next one would then wait for
        STALE_S, longer than a test. `test_shared_lock.py` tests this case.
        """
        lock = self.job_dir / "sweep.lock"
        while True:
            process.send_signal(signal.SIGSTOP)
            os.waitpid(process.pid, os.WUNTRACED)
            with contextlib.suppress(FileNotFoundError):
                if lock.read_text().split()[1:2] in ([str(process.pid)], []):
                    process.send_signal(signal.SIGCONT)
                    time.sleep(0.01)
                    continue
            break
        process.kill()
        process.wait()
        with contextlib.suppress(ProcessLookupError):
            os.kill(int((self.folder / f"srun-{number}.pid").read_text()), signal.SIGKILL)

    def close(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.kill()
                process.wait()
        for file in self.folder.glob("srun-*.pid"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(file.read_text()), signal.SIGKILL)


@pytest.fixture
def sweeps(tmp_path: Path) -> Iterator[Any]:
    """A factory of sweeps with the arguments of Sweep, except for the folder."""
    made: list[Sweep] = []

    def make(*arguments: Any, **options: Any) -> Sweep:
        folder = tmp_path / str(len(made))
        folder.mkdir()
        made.append(Sweep(folder, *arguments, **options))
        return made[-1]

    yield make
    for sweep in made:
        sweep.close()


def test_jobs_side_by_side_run_each_point_of_the_grid_once_and_the_last_one_ends_the_sweep(sweeps: Any) -> None:
    sweep = sweeps(GRID)
    jobs = [sweep.begin(number) for number in (1, 2)]
    sweep.wait(lambda: sorted(sweep.starts) == ["1", "2"])
    sweep.wait(lambda: sweep.rows("state") == ["running", "running"])
    assert sweep.state == ("running", "")
    sweep.go(1)
    sweep.wait(lambda: "complete" in sweep.rows("state"))
    assert sweep.state == ("running", "")
    sweep.go(2)
    assert sweep.finish(*jobs) == [0, 0], sweep.log()
    assert sweep.state == ("succeeded", "")
    rows = {row["params"]["x"]: row for row in sweep.table["trials"]}
    assert {x: (row["state"], row["value"], row["hosts"]) for x, row in rows.items()} == {
        0: ("complete", 1.0, ["n1"]),
        3: ("complete", 4.0, ["n1"]),
    }
    assert sweep.rows("run_id") == [f"{SWEEP}.1", f"{SWEEP}.2"]
    assert sorted(sweep.rows("job")) == ["24_1", "24_2"]
    assert sweep.table["state"] == "finished"
    copy = Path(sweep_folder.outputs(str(sweep.run_dir)), "study-copy.sqlite3")
    with contextlib.closing(sqlite3.connect(copy)) as study:  # optuna-dashboard opens this file.
        assert study.execute("select state from trials").fetchall() == [("COMPLETE",), ("COMPLETE",)]
        assert study.execute("select count(*) from trial_values").fetchone() == (2,)
    assert not (sweep.job_dir / "secrets.json").exists()
    names = sorted(line.split("name=")[1] for line in sweep.lines("updated"))
    assert names == [f"torchyard-{SWEEP}.1", f"torchyard-{SWEEP}.2"]
    assert sweep.sweep_log.count(" on n1: x=") == 2
    assert "loss 4" in sweep.sweep_log


def test_a_job_that_starts_again_continues_its_trial_after_a_requeue_and_after_the_loss_of_its_node(
    sweeps: Any,
) -> None:
    sweep = sweeps(RANDOM % 2)
    job = sweep.begin(1)
    sweep.wait(lambda: sweep.rows("state") == ["running"])
    (sweep.folder / "shown").write_text(REQUEUED)
    job.send_signal(signal.SIGTERM)
    sweep.wait(lambda: sweep.lines("requeued") == [f"requeue {ARRAY}_1"])
    sweep.wait(lambda: (sweep.rows("state"), sweep.rows("hosts")) == (["waiting"], [[]]))
    sweep.kill(1, job)
    sweep.go(2)
    assert sweep.finish(sweep.begin(2)) == [0], sweep.log()
    assert (sweep.rows("state"), sweep.rows("hosts")) == (["waiting", "complete"], [[], ["n1"]])
    (sweep.folder / "shown").write_text(RUNNING)
    job = sweep.begin(1, restart=1)
    sweep.wait(lambda: sweep.starts == ["1", "2", "1"])
    sweep.kill(1, job)
    job = sweep.begin(1, restart=2)
    sweep.wait(lambda: sweep.starts == ["1", "2", "1", "1"])
    assert sweep.state == ("running", "")
    sweep.go(1)
    assert sweep.finish(job) == [0], sweep.log()
    assert sweep.rows("state") == ["complete", "complete"]
    assert sweep.state == ("succeeded", "")
    assert sweep.sweep_log.count("trial 1: waits again: REQUEUED\n") == 2
    interruptions = [event for event in sweep.journal(f"{SWEEP}.1") if event["event"] == "interrupted"]
    assert [event["cause"] for event in interruptions] == ["REQUEUED", "REQUEUED"]
    assert interruptions[0]["metrics"]["worker-0"]["step"] == 1


def test_a_trial_that_fails_at_once_has_its_node_and_a_line_about_its_start(sweeps: Any) -> None:
    sweep = sweeps(RANDOM % 1, command="import missing_module")
    scontrol = sweep.folder / "bin" / "scontrol"
    scontrol.write_text(scontrol.read_text().replace("update*) ", "update*) sleep 5; "))  # The program ends before.
    sweep.finish(sweep.begin(1))
    assert (sweep.rows("state"), sweep.rows("hosts")) == (["failed"], [["n1"]])
    start, end, _ = sweep.sweep_log.splitlines()
    assert start.startswith("trial 1 on n1: x=")
    assert end.startswith("trial 1: failed: ")
    assert "missing_module" in sweep.state[1]


def test_a_worse_trial_is_pruned_and_one_whose_job_is_cancelled_has_failed(sweeps: Any) -> None:
    sweep = sweeps((RANDOM % 3) + "pruner: {kind: median, startup_trials: 1}\n", worse="2")
    sweep.go(1)
    assert sweep.finish(sweep.begin(1)) == [0]
    assert sweep.finish(sweep.begin(2)) == [0], sweep.log()
    assert sweep.rows("state") == ["complete", "pruned"]
    assert sweep.journal(f"{SWEEP}.2")[-1]["reason"].startswith("ended by the pruner at step 1: ")
    third = sweep.begin(3)
    sweep.wait(lambda: len(sweep.starts) == 3)
    (sweep.folder / "shown").write_text(RUNNING.replace("RUNNING", "COMPLETING"))
    third.send_signal(signal.SIGTERM)
    sweep.finish(third)
    assert sweep.rows("state") == ["complete", "pruned", "failed"]
    assert sweep.rows("cause")[2] == "its job 24_3 was cancelled in Slurm"
    assert sweep.state == ("succeeded", "")


def test_a_trial_whose_batch_program_is_killed_has_failed_with_slurm_s_word_in_table_and_study(sweeps: Any) -> None:
    sweep = sweeps(RANDOM % 2)
    killed = sweep.begin(1)
    sweep.wait(lambda: sweep.rows("state") == ["running"])
    sweep.kill(1, killed)
    (sweep.folder / "shown").write_text(RUNNING.replace("RUNNING", "FAILED"))
    sweep.go(2)
    assert sweep.finish(sweep.begin(2)) == [0], sweep.log()
    assert (sweep.rows("state"), sweep.rows("cause")) == (
        ["failed", "complete"],
        ["Slurm ended its job 24_1: FAILED", ""],
    )
    assert sweep.state == ("succeeded", "")
    copy = Path(sweep_folder.outputs(str(sweep.run_dir)), "study-copy.sqlite3")
    with contextlib.closing(sqlite3.connect(copy)) as study:
        assert study.execute("select state from trials").fetchall() == [("FAIL",), ("COMPLETE",)]
    assert "trial 1: failed: Slurm ended its job 24_1: FAILED\n" in sweep.sweep_log


def test_a_stop_interrupts_the_running_trial_and_lets_no_other_begin(sweeps: Any) -> None:
    sweep = sweeps(RANDOM % 3)
    running = sweep.begin(1)
    sweep.wait(lambda: sweep.rows("state") == ["running"])
    sweep_folder.note_stop(str(sweep.run_dir), "stopped by kim")
    assert sweep.finish(sweep.begin(2)) == [0]
    running.send_signal(signal.SIGUSR2)
    sweep.finish(running)
    assert sweep.state == ("stopped", "stopped by kim")
    assert (sweep.rows("state"), sweep.rows("cause")) == (["interrupted"], ["the sweep was stopped"])
    assert sweep.table["state"] == "stopped"
    assert sweep.starts == ["1"]


def test_a_sweep_without_optuna_fails_with_the_remedy_and_its_other_jobs_are_cancelled(sweeps: Any) -> None:
    bare = sweeps(RANDOM % 2, {"setup": ["python3() { :; }"], "python": "/missing/python3"})
    assert bare.finish(bare.begin(1)) == [1]
    assert bare.state[0] == "failed"
    assert bare.state[1].endswith(": /missing/python3, which chooses the trials, is not there after the setup lines")

    sweep = sweeps(RANDOM % 2)
    python = sweep.folder / "bin" / "python3"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')  # Without the installed packages.
    python.chmod(0o755)
    job = job_folder.read(str(sweep.job_dir), "job.json")
    job["sweep"]["python"] = str(python)
    job_folder.write(str(sweep.job_dir), "job.json", job)
    assert sweep.finish(sweep.begin(1)) == [1]
    state, reason = sweep.state
    assert state == "failed"
    assert ": Optuna is not installed for " in reason
    assert "-m pip install 'optuna>=4.2,<5'" in reason
    assert sweep.lines("cancelled")[0] == f"--state=PENDING {ARRAY}"
    assert not (sweep.job_dir / "secrets.json").exists()
    assert sweep.finish(sweep.begin(2)) == [0]


def test_three_trials_in_a_row_that_cannot_start_stop_the_sweep(sweeps: Any) -> None:
    sweep = sweeps(RANDOM % 5, gpus=1)
    for number in (1, 2, 3):
        assert sweep.finish(sweep.begin(number)) == [1], sweep.log()
    assert set(sweep.rows("cause")) == {"it could not be started: Slurm gave n1 0 of 1 GPUs"}
    assert sweep.state == ("stopped", "3 trials in a row could not be started: Slurm gave n1 0 of 1 GPUs")
    assert sweep.lines("cancelled")[0] == f"--state=PENDING {ARRAY}"
    assert sweep.finish(sweep.begin(4)) == [0]
    assert len(sweep.table["trials"]) == 3

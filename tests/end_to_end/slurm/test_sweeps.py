"""Tests of sweeps on a Slurm cluster, whose trials are the elements of an array of jobs."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.slurm.conftest import DesktopFactory
from tests.end_to_end.slurm.jobs import COMMAND, RUN_S, ClusterDesktop
from tests.lab.slurm import SlurmCluster
from tests.waiting import wait_until

pytestmark = pytest.mark.lab

TRIAL = """
import json, os, pathlib, socket, sys, time
x, trial, home = float(sys.argv[1]), sys.argv[2], pathlib.Path(os.environ["HOME"])
address = os.environ["TORCHYARD_REPORT"].replace("@", "\\0", 1)
message = {"replica": os.environ["TORCHYARD_REPLICA"], "local_rank": 0, "metrics": {"step": 1, "loss": (x - 2) ** 2}}
socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(json.dumps(message).encode(), address)
with open(home / "steps" / "starts", "a") as starts:
    starts.write(trial + "\\n")
while not (home / "end").exists():
    time.sleep(0.05)
"""
SEARCH = """\
version: 1
name: numbers
parameters: {x: {distribution: int, low: 0, high: 3}}
objective: {metric: loss, goal: minimize}
sampler: {kind: grid}
parallel: 2
"""


class Sweep:
    """A sweep of four trials on the cluster, two of them side by side, which run until the file `end` exists.

    Args:
        search: The text of the search file.
        topology: Changes of the topology, whose only replica is a worker.
    """

    def __init__(self, desktop: ClusterDesktop, search: str = SEARCH, **topology: Any):
        self.desktop = desktop
        self.cluster = desktop.cluster
        folder = self.cluster.controller.home / "steps"
        folder.mkdir(exist_ok=True)
        self._starts = folder / "starts"
        command = ["python3", "program.py", "{params.x}", "{trial}"]
        program = {**COMMAND, "command": command, "max_restarts": 0, "ends_with": "trainers"}
        self.topology = file = desktop.write(TRIAL, replicas=1, program=program, **topology)
        self.search = of_search = desktop.project / "search.yaml"
        of_search.write_text(search)
        done = desktop.torchyard("sweep", file, of_search, "--on", "hpc", "-y", "-d", "--json", timeout=RUN_S)
        assert done.returncode == 0, done.stdout + done.stderr + self.cluster.log()
        self.run_id = str(json.loads(done.stdout.splitlines()[-1])["run_id"])

    @property
    def starts(self) -> list[str]:
        return self._starts.read_text().split() if self._starts.exists() else []

    def shown(self) -> dict[str, Any]:
        done = self.desktop.torchyard("sweeps", "show", self.run_id, "--json", timeout=RUN_S)
        assert done.returncode == 0, done.stdout + done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def wait_for_starts(self, *trials: str, waiting: Collection[str] = ()) -> None:
        """Waits until the programs of exactly these trials have started, and the table shows which wait again."""
        wait_until(lambda: sorted(self.starts) == sorted(trials), RUN_S, what=self.log)
        table = self.desktop.run_dir(self.run_id) / "outputs" / "coordinator-0" / "sweep.json"

        def are_listed() -> bool:
            rows = json.loads(table.read_text())["trials"] if table.exists() else []
            return {row["trial"] for row in rows if row["state"] != "waiting"} == {*trials} - {*waiting}

        wait_until(are_listed, RUN_S, what=self.log)

    def end(self) -> None:
        (self.cluster.controller.home / "end").touch()

    def log(self) -> str:
        folder = self.desktop.run_dir(self.run_id) / "job"
        logs = "\n".join(f"{path.name}: {path.read_text()[-3000:]}" for path in sorted(folder.glob("*.log")))
        return f"{self.starts} {self.cluster.jobs()}\n{logs}"


@pytest.mark.timeout(300)
def test_the_trials_of_a_sweep_are_an_array_of_which_one_is_requeued_and_continues(
    on_cluster: DesktopFactory, cluster: SlurmCluster
) -> None:
    desktop = on_cluster()
    sweep = Sweep(desktop)
    sweep.wait_for_starts("1", "2")
    (listed,) = json.loads(desktop.torchyard("sweeps", "list", "--json").stdout)
    assert (listed["run_id"], listed["state"]) == (sweep.run_id, "running")
    states = cluster.jobs()
    array = next(iter(states)).partition("_")[0]
    assert states == {f"{array}_1": "RUNNING", f"{array}_2": "RUNNING", f"{array}_[3-4%2]": "PENDING"}
    names = cluster.run("squeue", "-h", "-t", "R", "-o", "%j").stdout.split()
    assert sorted(names) == [f"torchyard-{sweep.run_id}.1", f"torchyard-{sweep.run_id}.2"]
    (first,) = [one for one in sweep.shown()["trials"] if one["trial"] == "1"]
    job = json.loads((desktop.run_dir(first["run_id"]) / "job" / "started.json").read_text())["job_id"]
    assert first["job"] == job
    cluster.run("scontrol", "requeue", job)
    sweep.wait_for_starts("1", "2", "3", waiting=["1"])  # Another trial gets the node meanwhile.
    desktop.wait_for(first["run_id"], "waiting", "REQUEUED")
    sweep.end()

    def has_ended() -> bool:
        cluster.run("scontrol", "update", f"jobid={job}", "starttime=now")
        return bool(desktop.shown(sweep.run_id)["state"] == "succeeded")

    wait_until(has_ended, RUN_S, what=sweep.log)
    assert sorted(sweep.starts) == ["1", "1", "2", "3", "4"]
    assert [one["cause"] for one in desktop.shown(first["run_id"])["interruptions"]] == ["REQUEUED"]
    shown = sweep.shown()
    assert sorted((one["params"]["x"], one["state"], one["value"]) for one in shown["trials"]) == [
        (x, "complete", (x - 2) ** 2) for x in range(4)
    ]
    assert shown["state"] == "finished"
    exported = desktop.torchyard("export", "slurm", sweep.topology, "--on", "hpc", "--search", sweep.search)
    submitted = (desktop.run_dir(sweep.run_id) / "job" / "job.sh").read_text().replace(sweep.run_id, "RUN-ID")
    folder = "/root/.torchyard/hosts/hpc.1/runs/RUN-ID/job"
    printed = exported.stdout.replace("JOB-FOLDER", folder).splitlines()
    assert printed[:-1] == submitted.splitlines()[:-1], exported.stderr
    best = desktop.torchyard("sweeps", "best", sweep.run_id)
    assert "- '2'" in best.stdout, best.stdout + best.stderr
    logs = desktop.torchyard("runs", "logs", sweep.run_id)
    assert logs.stdout.count("loss ") == 4, logs.stdout + logs.stderr
    assert Path(shown["study_file"]).stat().st_size > 0
    wait_until(lambda: not cluster.jobs(), RUN_S, what=sweep.log)


@pytest.mark.timeout(300)
def test_one_trial_and_then_the_sweep_are_stopped_and_it_is_resumed(
    on_cluster: DesktopFactory, cluster: SlurmCluster
) -> None:
    desktop = on_cluster()
    sweep = Sweep(desktop)
    sweep.wait_for_starts("1", "2")
    stopped = desktop.torchyard("sweeps", "stop", sweep.run_id, "--trial", "1", timeout=RUN_S)
    assert stopped.returncode == 0, stopped.stdout + stopped.stderr + sweep.log()
    sweep.wait_for_starts("1", "2", "3")
    stopped = desktop.torchyard("sweeps", "stop", sweep.run_id, timeout=RUN_S)
    assert stopped.returncode == 0, stopped.stdout + stopped.stderr + sweep.log()
    shown = sweep.shown()
    assert {one["trial"]: one["state"] for one in shown["trials"]} == {
        "1": "failed",
        "2": "interrupted",
        "3": "interrupted",
    }
    assert desktop.shown(sweep.run_id)["state"] == "stopped"
    wait_until(lambda: not cluster.jobs(), RUN_S, what=sweep.log)
    sweep.end()
    resumed = desktop.torchyard("sweeps", "resume", sweep.run_id, "-y", "--json", timeout=RUN_S)
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr + cluster.log()
    events = [json.loads(line) for line in resumed.stdout.splitlines()]
    results = events[-1]["sweep"]
    assert (results["complete"], results["failed"], results["interrupted"]) == (3, 1, 2)
    of_trials = [one["state"] for one in events if one["event"] == "trial"]
    assert sorted(of_trials) == ["complete"] * 3 + ["running"] * 3
    assert events[-1]["timings"]["ended_s"] > events[-1]["timings"]["started_s"] > 0


@pytest.mark.timeout(300)
def test_a_waiting_sweep_is_stopped_and_heterogeneous_trials_run_one_after_another(
    on_cluster: DesktopFactory, cluster: SlurmCluster
) -> None:
    desktop = on_cluster()
    job = desktop.occupy()
    waiting = Sweep(desktop)
    desktop.wait_for(waiting.run_id, "waiting", "_[1-4%2] waits in the queue: Resources")
    shown = waiting.shown()
    assert (shown["state"], shown["trials"], shown["wanted"]) == ("waiting", [], 4)
    assert "_[1-4%2] waits in the queue: Resources" in shown["run"]["reason"]
    assert desktop.torchyard("runs", "stop", waiting.run_id, timeout=RUN_S).returncode == 0
    assert desktop.shown(waiting.run_id)["state"] == "stopped"
    assert waiting.shown()["state"] == "stopped"
    assert list(cluster.jobs()) == [job]
    cluster.run("scancel", job)
    waiting.search.write_text(SEARCH.replace("high: 3", "high: 1500"))
    refused = desktop.torchyard("sweep", waiting.topology, waiting.search, "--on", "hpc", "-y", "-d", timeout=RUN_S)
    assert refused.returncode == 3
    assert "an array of jobs of this cluster has at most 1000 trials (MaxArraySize)" in refused.stderr
    assert "sent" not in refused.stderr

    pools = [
        {"name": "workers", "role": "worker", "replicas": 1, "gpus": 1},
        {"name": "servers", "role": "ps", "replicas": 1},
    ]
    search = SEARCH.replace("high: 3", "high: 1").replace("parallel: 2\n", "")
    sweep = Sweep(desktop, search, pools=pools, strategy={"kind": "downpour"})
    wait_until(lambda: "1" in sweep.starts, RUN_S, what=sweep.log)
    first = {one.partition("+")[0] for one in cluster.jobs()}
    assert len(first) == 2, "each trial is a heterogeneous job"
    assert "2" not in sweep.starts
    sweep.end()
    desktop.wait_for(sweep.run_id, "succeeded")
    assert [one["state"] for one in sweep.shown()["trials"]] == ["complete", "complete"]

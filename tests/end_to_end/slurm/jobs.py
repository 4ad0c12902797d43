"""A desktop that launches runs on a Slurm cluster, and jobs that compete with these runs for nodes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import yaml

from tests import REPOSITORY
from tests.lab import Desktop
from tests.lab.commands import Commands
from tests.lab.slurm import SlurmCluster
from tests.waiting import wait_until
from torchyard_agent.slurm import commands

PROGRAMS = REPOSITORY / "tests" / "roles" / "programs"
RUN_S = 150.0
WAITS = """
import os, pathlib, socket, time
print("on", socket.gethostname(), os.environ["CUDA_VISIBLE_DEVICES"], flush=True)
pathlib.Path(os.environ["TORCHYARD_RUN_DIR"], "result.txt").write_text(socket.gethostname())
end = pathlib.Path(os.environ["HOME"], "end")
while not end.exists():
    time.sleep(0.05)
"""
"""A program that runs until the file `end` exists in its home."""
COMMAND = {"launcher": "command", "script": None, "command": ["python3", "program.py"], "args": []}
"""The `program` of a topology that runs a program as a plain command."""


def reservations(cluster: SlurmCluster) -> dict[str, dict[str, str]]:
    """Returns the reservations in Slurm, by name."""
    shown = cluster.run("env", "SLURM_TIME_FORMAT=%s", "scontrol", "-o", "show", "reservation").stdout
    found = [commands.pairs(line) for line in shown.splitlines()]
    return {one["ReservationName"]: one for one in found if "ReservationName" in one}


class ClusterDesktop(Desktop):
    """A desktop whose fleet file contains a cluster named hpc."""

    def __init__(self, directory: Path, cluster: SlurmCluster, commands: Commands | None = None, **entry: Any):
        """Creates the desktop.

        Args:
            directory: The folder for its files.
            cluster: The cluster.
            commands: Forks the commands that `torchyard` runs to their end.
            entry: Additions to the cluster's entry in the fleet file, such as `partition`.
        """
        super().__init__(directory, commands=commands)
        self.cluster = cluster
        self.project = directory / "project"
        self.project.mkdir()
        fleet = {"version": 1, "clusters": [cluster.fleet_entry(**entry)]}
        self.fleet_file.write_text(yaml.safe_dump(fleet))
        self.known_hosts.write_text(cluster.lab.known_hosts)

    def write(self, source: str | Path, *args: str, replicas: int = 3, name: str = "job", **topology: Any) -> Path:
        """Writes a topology whose workers run a program, which is given as a file or as source code."""
        script = self.project / "program.py"
        if isinstance(source, Path):
            shutil.copy(source, script)
        else:
            script.write_text(source)
        pools = [{"name": "workers", "role": "worker", "replicas": replicas, "placement": "spread"}]
        settings = {"script": "program.py", "args": list(args), "stop_grace_s": 20, **topology.pop("program", {})}
        content = {key: value for key, value in settings.items() if value is not None}
        file = self.project / "topology.yaml"
        text = {"version": 1, "name": name, "pools": pools, **topology, "program": content}
        file.write_text(yaml.safe_dump(text, sort_keys=False))
        return file

    def run(self, file: Path, *options: str, expect: int = 0) -> str:
        """Launches a topology on the cluster without following it. Returns the run's ID, or the error's message."""
        done = self.torchyard("run", file, "--on", "hpc", "-y", "--detach", "--json", *options, timeout=RUN_S)
        assert done.returncode == expect, done.stdout + done.stderr + self.cluster.log()
        last: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return str(last["run_id"]) if expect == 0 else str(last["error"]["message"])

    def shown(self, run_id: str) -> dict[str, Any]:
        done = self.torchyard("runs", "show", run_id, "--json", timeout=RUN_S)
        assert done.returncode == 0, done.stdout + done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def wait_for(self, run_id: str, state: str, reason: str = "") -> dict[str, Any]:
        """Waits until the run is in this state and its reason contains this text; returns the run's details."""
        last: dict[str, Any] = {}

        def is_there() -> bool:
            last.update(self.shown(run_id))
            return last["state"] == state and reason in last["reason"]

        wait_until(is_there, RUN_S, what=lambda: f"{last}\n{self.job_log(run_id)}")
        return last

    def run_dir(self, run_id: str, number: int = 1, user: str = "root") -> Path:
        """Returns the folder of a run for one slot, as a path on this machine."""
        home = self.cluster.controller.home_of(user)
        return home / ".torchyard" / "hosts" / f"hpc.{number}" / "runs" / run_id

    def journal(self, run_id: str) -> list[dict[str, Any]]:
        """Returns the events in the journal of the run's primary."""
        file = self.run_dir(run_id) / "journal.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def job_log(self, run_id: str) -> str:
        logs = sorted((self.run_dir(run_id) / "job").glob("*.log"))
        return "\n".join(f"{path.name}: {path.read_text(errors='replace')[-3000:]}" for path in logs)

    def occupy(self, *options: str, seconds: int = 1000) -> str:
        """Submits a job that takes all nodes. Returns its ID once it is running."""
        command = ("sbatch", "--parsable", "-N3", "--exclusive", "-o", "/dev/null", *options, "--wrap")
        job = self.cluster.run(*command, f"sleep {seconds}").stdout.strip()
        wait_until(lambda: self.cluster.jobs().get(job) == "RUNNING", what=self.cluster.log)
        return job

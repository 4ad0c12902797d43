"""Tests of sweeps on three hosts, during which a trial, a host or the desktop is killed."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.end_to_end.running import started
from tests.faults.runs import QUICK, Team, outside_pids
from tests.lab import LabHost
from tests.waiting import wait_until

pytestmark = pytest.mark.lab

SCRIPT = """
    import json, os, socket, sys, time
    trial, x = sys.argv[1], float(sys.argv[2])
    print("began", trial, flush=True)
    assert json.loads(os.environ["CLUSTER_SPEC"])["task"]["trial"] == trial
    if trial in ("2", "3"):
        time.sleep(600)
    address = os.environ["TORCHYARD_REPORT"].replace("@", "\\0", 1)
    message = {"replica": os.environ["TORCHYARD_REPLICA"], "local_rank": 0}
    message["metrics"] = {"step": 1, "loss": (x - 1) ** 2}
    socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(json.dumps(message).encode(), address)
"""
PROGRAM = """
    args: ["{trial}", "{params.x}"]
    max_restarts: 0
    stop_grace_s: 1
    failure_grace_s: 0.1
"""
SEARCH = """\
version: 1
parameters: {x: {distribution: uniform, low: -5, high: 5}}
objective: {metric: loss, goal: minimize}
sampler: {kind: tpe, seed: 1}
trials: %d
parallel: 3
"""


class SweepOnDisk:
    """A sweep as recorded on the hosts' disks."""

    def __init__(self, team: Team, run_id: str):
        self.run_id = run_id
        self._team = team

    def runs(self, host: LabHost) -> Path:
        return self._team.agent_dir(host) / "hosts" / host.name / "runs"

    def table(self) -> dict[str, Any]:
        for host in self._team.lab.hosts:
            file = self.runs(host) / self.run_id / "outputs" / "coordinator-0" / "sweep.json"
            if file.exists():
                return json.loads(file.read_text())
        return {}

    @property
    def primary(self) -> LabHost:
        name = self.table()["slots"][0][0]
        return self._team.lab[name]

    def host_of(self, trial: str) -> LabHost:
        row = next(row for row in self.table()["trials"] if row["trial"] == trial)
        return self._team.lab[row["hosts"][0]]

    def began(self) -> Counter[str]:
        """Returns how often each trial's program was started on all hosts together, according to the trials' logs."""
        found: Counter[str] = Counter()
        for host in self._team.lab.hosts:
            for log in self.runs(host).glob(f"{self.run_id}.*/logs/worker-0.log"):
                found.update(line.split()[1] for line in log.read_text().splitlines() if line.startswith("began"))
        return found

    def ended(self) -> dict[str, Any]:
        lines = (self.runs(self.primary) / self.run_id / "journal.jsonl").read_text().splitlines()
        last = json.loads(lines[-1])
        return last if last["event"] == "run_ended" else {}


@pytest.mark.parametrize("trials", [6, pytest.param(50, marks=[pytest.mark.proof, pytest.mark.timeout(900)])])
def test_a_sweep_loses_no_trial_and_runs_none_twice(team: Team, tmp_path: Path, trials: int) -> None:
    team.impatient(**QUICK)
    topology, search = team.topology(SCRIPT, PROGRAM, replicas=1), tmp_path / "search.yaml"
    search.write_text(SEARCH % trials)
    following = team.desktop.start("sweep", topology, search, "--json", "-y")
    sweep = SweepOnDisk(team, started(following, "run_submitted")["run_id"])
    wait_until(lambda: sweep.began()["2"] == sweep.began()["3"] == 1, 60)

    following.kill()
    following.wait(60)
    for pid in outside_pids(sweep.host_of("2"), "script.py"):
        os.kill(pid, signal.SIGKILL)
    lost = sweep.host_of("3")
    assert lost.name != sweep.primary.name
    lost.destroy()

    wait_until(sweep.ended, 30 + 10 * trials)
    assert (sweep.ended()["state"], sweep.ended()["reason"]) == ("succeeded", "")
    states = {row["trial"]: row["state"] for row in sweep.table()["trials"]}
    assert states == {str(number): "failed" if number in (2, 3) else "complete" for number in range(1, trials + 1)}
    assert sweep.began() == Counter(states.keys())

    shown = json.loads(team.desktop.torchyard("sweeps", "show", sweep.run_id, "--json").stdout)
    assert {row["trial"]: row["state"] for row in shown["trials"]} == states
    assert shown["best"] in states
    with closing(sqlite3.connect(shown["study_file"])) as study:
        assert study.execute("select count(*) from trials").fetchone() == (trials,)
    best = yaml.safe_load(team.desktop.torchyard("sweeps", "best", sweep.run_id).stdout)
    row = next(row for row in shown["trials"] if row["trial"] == shown["best"])
    assert best["program"]["args"] == ["{trial}", str(row["params"]["x"])]
    listed = json.loads(team.desktop.torchyard("sweeps", "list", "--json").stdout)
    assert [(one["run_id"], one["trials"]["complete"]) for one in listed] == [(sweep.run_id, trials - 2)]


def test_a_search_with_errors_and_a_run_with_parameters_are_refused(team: Team, tmp_path: Path) -> None:
    topology, search = team.topology(SCRIPT, PROGRAM, replicas=1), tmp_path / "search.yaml"
    search.write_text((SEARCH % 3).replace("low: -5", "low: 6"))
    refused = team.desktop.torchyard("sweep", topology, search)
    assert refused.returncode == 1
    assert f"{search}:2:46: error range the range of x is empty: low 6 is above high 5" in refused.stderr
    refused = team.desktop.torchyard("run", topology)
    assert refused.returncode == 1
    assert "contains {params.x}, which only a sweep replaces" in refused.stderr


def test_a_sweep_that_was_stopped_is_resumed(team: Team, tmp_path: Path) -> None:
    topology, search = team.topology(SCRIPT, PROGRAM, replicas=1), tmp_path / "search.yaml"
    search.write_text((SEARCH % 3).replace("parallel: 3\n", ""))
    run_id = team.desktop.torchyard("sweep", topology, search, "--detach", "-y").stdout.strip()
    sweep = SweepOnDisk(team, run_id)
    wait_until(lambda: sweep.began() == Counter("12") and sweep.table()["trials"][1]["state"] == "running", 60)
    one = team.desktop.torchyard("sweeps", "stop", "last", "--trial", "2")
    assert one.returncode == 0, one.stderr
    wait_until(lambda: sweep.began() == Counter("123"), 60)
    stopped = team.desktop.torchyard("sweeps", "stop", run_id)
    assert stopped.returncode == 0, stopped.stderr
    assert [row["state"] for row in sweep.table()["trials"]] == ["complete", "failed", "interrupted"]

    (topology.parent / "script.py").write_text("changed")
    refused = team.desktop.torchyard("sweeps", "resume", run_id)
    assert refused.returncode == 1
    assert "have changed since the sweep began" in refused.stderr
    script = (sweep.runs(sweep.primary) / f"{run_id}.1" / "work" / "script.py").read_bytes()
    (topology.parent / "script.py").write_bytes(script)
    resumed = team.desktop.torchyard("sweeps", "resume", run_id, "--detach", "-y")
    assert resumed.returncode == 0, resumed.stderr
    again = SweepOnDisk(team, resumed.stdout.strip())
    wait_until(lambda: again.table() and again.ended(), 60)
    rows = again.table()["trials"]
    assert [row["state"] for row in rows] == ["complete", "failed", "interrupted", "complete"]
    assert rows[3]["params"] == rows[2]["params"]
    refused = team.desktop.torchyard("sweeps", "resume", again.run_id)
    assert "has all its 3 trials" in refused.stderr
    refused = team.desktop.torchyard("sweeps", "resume", run_id)
    assert f"sweep {run_id} was continued as sweep {again.run_id}" in refused.stderr
    refused = team.desktop.torchyard("runs", "restart", f"{again.run_id}.4")
    assert f" sweeps best {again.run_id} --trial 4 -o FILE`" in refused.stderr

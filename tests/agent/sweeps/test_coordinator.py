"""Tests of sweeps with real keepers and a real coordinator; each host has an agent folder and an address of its own."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
import sqlite3
import sys
import zlib
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.agent.keeper.keeper_cluster import CLUSTER, Host, KeeperCluster, replica
from tests.waiting import eventually
from torchyard_agent.sweeps.study import COPY, TABLE
from torchyard_core.sweeps.search_file import search_from_text

Scenario = Callable[[KeeperCluster], Awaitable[None]]
TOKEN = "trial-run-5e5e"
TRIAL = """
import json, os, socket, sys, time
trial, x, shared = sys.argv[1], float(sys.argv[2]), sys.argv[3]
def report(**metrics):
    address = os.environ["TORCHYARD_REPORT"].replace("@", "\\0", 1)
    message = {"replica": os.environ["TORCHYARD_REPLICA"], "local_rank": 0, "metrics": metrics}
    socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(json.dumps(message).encode(), address)
def wait_for(name):
    while not os.path.exists(os.path.join(shared, name)):
        time.sleep(0.02)
assert json.loads(os.environ["CLUSTER_SPEC"])["task"]["trial"] == trial
with open(os.path.join(shared, "starts"), "a") as starts:
    starts.write(trial + "\\n")
with open(os.path.join(shared, "pid-" + trial), "w") as file:
    file.write(str(os.getpid()))
"""


def sweep_of(cluster: KeeperCluster, text: str, program: str, slots: list[list[str]], **changes: Any) -> dict[str, Any]:
    """Returns a sweep whose trials each have one worker, on the first host of the trial's slot."""
    search = search_from_text(text).search
    assert search is not None
    argv = [sys.executable, "-S", "-c", TRIAL + program, "{trial}", "{params.x}", str(cluster.folder)]
    described = [
        {
            "hosts": hosts,
            "cluster": {**CLUSTER, "run_id": TOKEN, "options": {}},
            "replicas": [replica("worker-0", hosts[0], argv)],
            "prepare": {
                host: {
                    "name": "trial",
                    "host": host,
                    "snapshot": None,
                    "gpus": [],
                    "ports": 0,
                    "port_range": None,
                    "data_address": cluster.hosts[host].prepared["address"],
                    "interface": None,
                    "towards": None,
                    "record": {},
                }
                for host in hosts
            },
        }
        for hosts in slots
    ]
    policy = {
        "ends_with": "trainers",
        "stop_grace_s": 1.0,
        "failure_grace_s": 0.1,
        "host_wait_s": 1.0,
        "max_restarts": 0,
        "min_replicas": {},
    }
    known = {"run_id": cluster.run_id, "name": "s", "run_token": TOKEN, "search": search.as_message()}
    return {**known, "slots": described, "policy": policy, "carry": False, "host_wait_s": 60.0, "study": "", **changes}


async def begin(cluster: KeeperCluster, sweep: dict[str, Any]) -> None:
    primary = next(iter(cluster.hosts.values()))
    env = {"TORCHYARD_REPLICA": "coordinator-0", "TORCHYARD_RUN_DIR": str(folder_of(primary))}
    argv = [sys.executable, "-m", "torchyard_agent.sweeps.coordinator"]
    coordinator = replica("coordinator-0", primary.name, argv, env=env)
    await cluster.begin(coordinator, sweep=sweep, ends_with="all", max_restarts=3, stop_grace_s=20.0)


def folder_of(host: Host) -> Path:
    return host.run_dir / "outputs" / "coordinator-0"


def table_of(host: Host) -> dict[str, Any]:
    """Returns the table of the sweep, or {} before the coordinator has written one."""
    file = folder_of(host) / TABLE
    return json.loads(file.read_text()) if file.exists() else {}


def states_of(host: Host) -> dict[str, str]:
    return {one["trial"]: one["state"] for one in table_of(host).get("trials", [])}


def starts(cluster: KeeperCluster) -> list[str]:
    file = cluster.folder / "starts"
    return file.read_text().split() if file.exists() else []


SEARCH = """\
version: 1
parameters: {x: {distribution: uniform, low: -5, high: 5}}
objective: {metric: loss, goal: minimize}
sampler: {kind: tpe, seed: 1}
trials: %d
parallel: 3
"""


@pytest.fixture
def run_scenario(tmp_path: Path) -> Iterator[Callable[[Scenario], None]]:
    cluster = KeeperCluster(tmp_path, os.urandom(6).hex())

    def run(scenario: Scenario) -> None:
        async def main() -> None:
            try:
                await scenario(cluster)
            finally:
                cluster.close()

        asyncio.run(main())

    yield run
    cluster.close()


def test_no_trial_is_lost_or_run_twice_when_trial_coordinator_and_host_are_killed(
    run_scenario: Callable[[Scenario], None],
) -> None:
    program = """
if trial in ("2", "3"):
    time.sleep(600)
wait_for("go")
report(step=1, loss=(x - 1) ** 2)
"""

    async def scenario(cluster: KeeperCluster) -> None:
        a, _, c = await cluster.add("gpu-a", "gpu-b", "gpu-c", timeouts={"lease_s": 3.0})
        await begin(cluster, sweep_of(cluster, SEARCH % 9, program, [["gpu-a"], ["gpu-b"], ["gpu-c"]]))
        await eventually(lambda: set(starts(cluster)) == {"1", "2", "3"}, 60)
        shown = await a.call("metrics")
        os.kill(shown["pids"]["coordinator-0"][0], signal.SIGKILL)
        await eventually(lambda: any(event["event"] == "gang_restart" for event in a.journal()))
        os.kill(int((cluster.folder / "pid-2").read_text()), signal.SIGKILL)
        c.process.kill()
        c.process.wait()
        (cluster.folder / "go").touch()
        await eventually(lambda: a.process.poll() is not None, 90)
        assert (a.ended()["state"], a.ended()["reason"]) == ("succeeded", ""), a.output("coordinator-0")
        table = table_of(a)
        assert table["state"] == "finished"
        assert sorted(starts(cluster), key=int) == [str(number) for number in range(1, 10)]
        rows = {one["trial"]: one for one in table["trials"]}
        assert {name: one["state"] for name, one in rows.items()} == {
            **dict.fromkeys(map(str, range(1, 10)), "complete"),
            "2": "failed",
            "3": "failed",
        }
        assert rows["3"]["cause"] == "gpu-c was lost while it ran"
        assert "SIGKILL" in rows["2"]["cause"]
        for row in rows.values():
            assert row["state"] == "failed" or row["value"] == pytest.approx((row["params"]["x"] - 1) ** 2)
        with sqlite3.connect(folder_of(a) / COPY) as study:  # optuna-dashboard opens this file.
            assert study.execute("select count(*) from trials").fetchone() == (9,)
        study.close()
        assert cluster.left() == []

    run_scenario(scenario)


def test_a_stopped_sweep_ends_its_trials_and_is_resumed_and_prunes_a_worse_one(
    run_scenario: Callable[[Scenario], None],
) -> None:
    program = """
if trial == "1":
    report(step=1, accuracy=0.5, other=1)
elif trial == "2":
    time.sleep(600)
else:
    report(step=1, loss=float(trial))
    if trial == "4":  # It is worse than the third.
        time.sleep(600)
"""
    search = (SEARCH % 3).replace("parallel: 3\n", "pruner: {kind: median, startup_trials: 1}\n")

    async def scenario(cluster: KeeperCluster) -> None:
        (a,) = await cluster.add("gpu-a")
        await begin(cluster, sweep_of(cluster, search, program, [["gpu-a"]]))
        await eventually(lambda: starts(cluster) == ["1", "2"], 60)
        await a.call("stop", reason="enough")
        await eventually(lambda: a.process.poll() is not None, 60)
        assert (a.ended()["state"], a.ended()["reason"]) == ("stopped", "enough")
        assert cluster.left() == []
        first, second = table_of(a)["trials"]
        assert (first["state"], first["cause"]) == (
            "failed",
            "the objective loss was never reported; reported were: accuracy, other, step",
        )
        assert (second["state"], second["cause"]) == ("interrupted", "the sweep was stopped")
        study = base64.b64encode(zlib.compress((folder_of(a) / COPY).read_bytes())).decode()

        cluster.run_id += "-again"
        (b,) = await cluster.add("gpu-a")
        await begin(cluster, sweep_of(cluster, search, program, [["gpu-a"]], study=study))
        await eventually(lambda: b.process.poll() is not None, 60)
        assert b.ended()["state"] == "succeeded", b.output("coordinator-0")
        rows = table_of(b)["trials"]
        assert [one["state"] for one in rows] == ["failed", "interrupted", "complete", "pruned"]
        assert rows[3]["value"] == 4.0
        assert rows[2]["params"] == second["params"]
        assert starts(cluster) == ["1", "2", "3", "4"]

    run_scenario(scenario)


def test_a_sweep_whose_trials_never_report_the_objective_fails_and_says_what_they_report(
    run_scenario: Callable[[Scenario], None],
) -> None:
    async def scenario(cluster: KeeperCluster) -> None:
        (a,) = await cluster.add("gpu-a")
        program = "report(step=1, accuracy=0.5)"
        await begin(cluster, sweep_of(cluster, SEARCH % 2, program, [["gpu-a"]]))
        await eventually(lambda: a.process.poll() is not None, 60)
        reason = "all 2 trials have failed: the objective loss was never reported; reported were: accuracy, step"
        assert (a.ended()["state"], a.ended()["reason"]) == ("failed", reason), a.output("coordinator-0")
        assert table_of(a)["state"] == "finished"
        assert starts(cluster) == ["1", "2"]
        assert not any(event["event"] == "gang_restart" for event in a.journal())

    run_scenario(scenario)

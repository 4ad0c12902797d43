"""Tests of workers that are added to a run while it trains. Keepers and training processes are real; gradients are
exchanged over gloo.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.agent.keeper.conftest import RunScenario
from tests.agent.keeper.keeper_cluster import SECRET, Host, KeeperCluster, replica
from tests.agent.keeper.test_lost_workers import (
    END_S,
    PROGRAM,
    check_all_are_equal,
    lines,
    memberships_of,
)
from tests.ports import free_port
from tests.roles.processes import ROOT
from torchyard_agent.protocol.jsonrpc import RpcError

pytestmark = [pytest.mark.train, pytest.mark.timeout(500)]


class GrowingRun:
    """A run of `workers` on the first host of a cluster, to which workers are added."""

    def __init__(self, cluster: KeeperCluster, host: Host, workers: int, *arguments: object, program: Path = PROGRAM):
        self.cluster = cluster
        self.host = host
        self._next = workers
        self._command = [cluster.python, str(program), *map(str, arguments)]
        self._port = free_port()

    def plan(self, number: int, host: Host, **changes: str) -> dict[str, Any]:
        name = f"worker-{number}"
        environment = {
            "PYTHONPATH": str(ROOT / "agent"),
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo",
            "CUDA_VISIBLE_DEVICES": "",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(self._port),
            "TORCHYARD_ROLE": "worker",
            "TORCHYARD_RUN_ID": self.cluster.run_id,
            "TORCHYARD_REPLICA": name,
        }
        return replica(name, host.name, self._command, env=environment | changes)

    async def begin(self, max_restarts: int = 0) -> None:
        await self.cluster.begin(
            *(self.plan(number, self.host) for number in range(self._next)),
            options={"kind": "all_reduce", "on_worker_loss": "continue"},
            on_worker_loss="continue",
            min_replicas={"worker": 1},
            max_restarts=max_restarts,
            failure_grace_s=0.2,
        )

    async def invite(self, host: str) -> dict[str, Any]:
        """Waits until the workers have completed a step; returns the keeper's answer to `invite` for a host."""
        while True:
            try:
                answer: dict[str, Any] = await self.host.call("invite", host=host)
            except RpcError as error:
                if "have not completed a step" not in error.message and "it is starting" not in error.message:
                    raise
                await asyncio.sleep(0.1)
            else:
                return answer

    async def grow(self, host: Host, count: int = 1, **changes: str) -> list[str]:
        plans = [self.plan(self._next + number, host, **changes) for number in range(count)]
        self._next += count
        await self.host.call(
            "grow",
            member=None if host is self.host else host.member,
            replicas=plans,
            by="kim@laptop",
        )
        return [one["name"] for one in plans]


def test_a_worker_that_is_added_on_a_new_host_has_the_parameters_of_the_others(run_scenario: RunScenario) -> None:
    async def scenario(cluster: KeeperCluster) -> None:
        (a,) = await cluster.add("gpu-a")
        run = GrowingRun(cluster, a, 2, 5, "returns=1")
        await run.begin()
        assert (await run.invite("gpu-b")) == {
            "primary": a.member,
            "secret": SECRET,
            "replicas": [{"name": f"worker-{number}", "host": "gpu-a"} for number in range(2)],
        }
        (b,) = await cluster.add("gpu-b")
        await b.call("join", primary=a.member)
        await run.grow(b)
        ended = await cluster.end(END_S)
        assert ended["state"] == "succeeded", ended
        assert {one["name"]: one["state"] for one in ended["replicas"]} == dict.fromkeys(
            ("worker-0", "worker-1", "worker-2"), "succeeded"
        )
        results = [lines(a, 0)[-1], lines(a, 1)[-1], lines(b, 2)[-1]]
        assert len({result["digest"] for result in results}) == 1
        assert all(result["far"] <= 1e-12 for result in results)
        history = [line["ranks"] for line in lines(a, 0)[:-1]]
        assert history[0] == [0, 1]
        assert history[-5:] == [[0, 1, 2]] * 5
        assert memberships_of(a) == memberships_of(b) == [(1, ["worker-0", "worker-1", "worker-2"], [])]
        [asked] = [event for event in a.journal() if event["event"] == "asked" and event["what"] == "grow"]
        assert (asked["by"], asked["host"], asked["replicas"]) == ("kim", "gpu-b", ["worker-2"])
        record = json.loads((a.run_dir / "run.json").read_text())["record"]
        assert record["replicas"] == [{"name": "worker-2", "host": "gpu-b", "gpus": []}]

    run_scenario(scenario)


@pytest.mark.proof
def test_an_added_worker_that_is_lost_in_the_transfer_and_the_lost_chief_return(run_scenario: RunScenario) -> None:
    async def scenario(cluster: KeeperCluster) -> None:
        (a,) = await cluster.add("gpu-a")
        run = GrowingRun(cluster, a, 2, 5, "returns=3", "2:1:back", "0:20:backward")
        await run.begin(max_restarts=1)
        await run.invite("gpu-a")
        await run.grow(a, 2)
        ended = await cluster.end(END_S)
        assert ended["state"] == "succeeded", ended
        assert check_all_are_equal(a, 4)[-5:] == [[0, 1, 2, 3]] * 5
        assert not [event for event in a.journal() if event["event"] == "gang_restart"]

    run_scenario(scenario)


@pytest.mark.proof
def test_a_worker_whose_script_fails_leaves_the_run_as_it_was(run_scenario: RunScenario) -> None:
    async def scenario(cluster: KeeperCluster) -> None:
        (a,) = await cluster.add("gpu-a")
        run = GrowingRun(cluster, a, 2, 5, "returns=1")
        await run.begin()
        await run.invite("gpu-b")
        (b,) = await cluster.add("gpu-b")
        await b.call("join", primary=a.member)
        await run.grow(b, TORCHYARD_ROLE="nobody")
        assert await b.exit_code(60) == 0
        assert b.ended()["state"] == "stopped"
        assert "TORCHYARD_ROLE is 'nobody'" in b.ended()["reason"]
        assert memberships_of(a) == []
        await run.grow(a)
        ended = await cluster.end(END_S)
        assert ended["state"] == "succeeded", ended
        assert memberships_of(a) == [(1, ["worker-0", "worker-1", "worker-3"], [])]

    run_scenario(scenario)

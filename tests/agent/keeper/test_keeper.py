"""Tests of the keeper process: the resources that it uses, its internal errors, and Python 3.9."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.agent.keeper.conftest import RunScenario
from tests.agent.keeper.keeper_cluster import KeeperCluster, replica, shell
from tests.waiting import eventually

PYTHON_39 = Path("~/.pyenv/versions/3.9.18/bin/python").expanduser()
MOST_RESIDENT_KB = 20 * 1024
FOREVER = shell("exec sleep 1000")


def _cpu_ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def _resident_kb(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("VmRSS")))


@pytest.mark.skipif(not PYTHON_39.exists(), reason="there is no Python 3.9 here")
def test_a_run_under_python_3_9(run_scenario: RunScenario) -> None:
    async def scenario(cluster: KeeperCluster) -> None:
        a, b = await cluster.add("gpu-a", "gpu-b", interpreter=str(PYTHON_39))
        await cluster.begin(
            replica("chief-0", "gpu-a", shell("while [ ! -e go ]; do sleep 0.01; done")),
            replica("worker-0", "gpu-b", FOREVER),
            ends_with="chief",
        )
        await eventually(lambda: "running" in b.states())
        (a.run_dir / "work" / "go").touch()
        ended = await cluster.end()
        assert ended["state"] == "succeeded"

    run_scenario(scenario)


def test_an_idle_keeper_uses_little_memory_and_no_cpu(run_scenario: RunScenario) -> None:
    async def scenario(cluster: KeeperCluster) -> None:
        a, b = await cluster.add("gpu-a", "gpu-b")
        await cluster.begin(replica("chief-0", "gpu-a", FOREVER), replica("worker-0", "gpu-b", FOREVER))
        await eventually(lambda: "running" in b.states())
        before = _cpu_ticks(a.process.pid)
        await a.call("metrics")
        for _ in range(3):
            with pytest.raises(subprocess.TimeoutExpired):
                a.process.wait(1)
        assert _cpu_ticks(a.process.pid) - before <= 0.02 * 3 * os.sysconf("SC_CLK_TCK")
        for host in (a, b):
            assert _resident_kb(host.process.pid) < MOST_RESIDENT_KB
        await a.call("stop", reason="enough")
        await cluster.end()

    run_scenario(scenario)


def test_an_internal_error_of_the_keeper_ends_the_run_with_a_reason(
    run_scenario: RunScenario,
) -> None:
    async def scenario(cluster: KeeperCluster) -> None:
        a, b = await cluster.add("gpu-a", "gpu-b", timeouts={"heartbeat_s": 0.3, "lease_s": 1.5})
        await cluster.begin(
            replica("chief-0", "gpu-a", FOREVER), replica("worker-0", "gpu-b", FOREVER), stop_grace_s="a while"
        )
        await eventually(lambda: "running" in b.states())
        await a.call("stop", reason="enough")
        assert await a.exit_code() == 0
        assert a.ended()["state"] == "failed"
        assert a.ended()["reason"].startswith("internal error of the run keeper on gpu-a: TypeError(")
        assert "Traceback" in a.log()
        assert await b.exit_code() == 0
        assert b.ended()["state"] == "failed"
        assert cluster.left() == []

    run_scenario(scenario)


def test_ranks_killed_after_an_internal_error_are_not_restarted(run_scenario: RunScenario) -> None:
    async def scenario(cluster: KeeperCluster) -> None:
        (a,) = await cluster.add("gpu-a")
        await cluster.begin(replica("worker-0", "gpu-a", FOREVER), stop_grace_s="a while", max_restarts=1)
        await eventually(lambda: "running" in a.states())
        await a.call("stop", reason="enough")
        assert await a.exit_code() == 0
        assert a.ended()["reason"].startswith("internal error of the run keeper on gpu-a: TypeError(")
        assert [(one["state"], one["reason"]) for one in a.ended()["replicas"]] == [("stopped", a.ended()["reason"])]
        assert not [event for event in a.journal() if event["event"] == "gang_restart"]
        assert "SIGKILL" not in (a.run_dir / "journal.jsonl").read_text()
        assert cluster.left() == []

    run_scenario(scenario)


def test_output_that_is_no_valid_text_is_journaled(run_scenario: RunScenario) -> None:
    message = '{"message": "caf\\\\udce9 \\\\ud83d \\\\u0000 nothing"}'

    async def scenario(cluster: KeeperCluster) -> None:
        (a,) = await cluster.add("gpu-a")
        fails = shell(f"printf '{message}' > $TORCHELASTIC_ERROR_FILE; exit 1")
        await cluster.begin(replica("worker-0", "gpu-a", fails), notify="printf '%s' \"$TORCHYARD_CAUSE\" > notified")
        ended = await cluster.end()
        assert ended["reason"] == "worker-0 on gpu-a: exited with 1: caf\udce9 \ud83d \0 nothing"
        notified = (a.run_dir / "work" / "notified").read_text()
        assert notified == "worker-0 on gpu-a: exited with 1: caf\\udce9 \\ud83d  nothing"

    run_scenario(scenario)


def test_output_of_ranks_does_not_pass_through_the_keeper(run_scenario: RunScenario) -> None:
    async def scenario(cluster: KeeperCluster) -> None:
        (a,) = await cluster.add("gpu-a")
        before = _cpu_ticks(a.process.pid)
        await cluster.begin(replica("worker-0", "gpu-a", shell("seq 1 500000; while [ ! -e go ]; do sleep 0.01; done")))
        await eventually(lambda: a.output("worker-0").endswith("\n500000\n"))
        assert _cpu_ticks(a.process.pid) - before < os.sysconf("SC_CLK_TCK") / 2
        (a.run_dir / "work" / "go").touch()
        await cluster.end()
        assert a.output("worker-0").splitlines() == [str(number) for number in range(1, 500001)]

    run_scenario(scenario)

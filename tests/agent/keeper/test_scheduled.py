"""Tests of scheduled runs, with real keepers and start times that are a few seconds ahead."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.agent.enforcement.calendars import HOUR, booking
from tests.agent.fake_nvml import FakeGpu, build_fake_nvml, write_gpus
from tests.agent.keeper.keeper_cluster import Host, KeeperCluster, replica, shell
from tests.waiting import eventually
from torchyard_agent.protocol.timestamps import rfc3339

RunScenario = Callable[[Callable[[KeeperCluster], Awaitable[None]]], None]

OK = shell("exit 0")
FOREVER = shell("while :; do sleep 0.1; done")


def gpu() -> str:
    return f"GPU-{os.urandom(8).hex()}"


def reasons(host: Host) -> list[str]:
    return [event.get("reason", "") for event in host.journal() if event["event"] == "run_state"]


def is_locked(uuid: str) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(f"\0torchyard/gpu/{uuid}")
        except ConnectionRefusedError:
            return False
        return True


def test_a_scheduled_run_locks_its_gpus_and_starts_at_its_time(run_scenario: RunScenario) -> None:
    async def scenario(cluster: KeeperCluster) -> None:
        of_a, of_b = gpu(), gpu()
        (a,) = await cluster.add("gpu-a", later=True, gpus=[of_a])
        (b,) = await cluster.add("gpu-b", later=True, gpus=[of_b], data_address="127.0.0.2")
        start_at = float(int(time.time()) + 3)
        await cluster.begin(
            replica("chief-0", "gpu-a", OK, gpus=[of_a]),
            replica("worker-0", "gpu-b", OK, gpus=[of_b]),
            start_at=rfc3339(start_at),
        )
        for host in (a, b):
            await eventually(lambda host=host: any("starts at" in reason for reason in reasons(host)))
            assert host.connection is not None
            host.connection.close()  # Now neither a desktop nor a daemon is connected.
        assert not (is_locked(of_a) or is_locked(of_b)) or time.time() >= start_at
        ended = await cluster.end()
        assert ended["state"] == "succeeded"
        assert [state for state in a.states() if state != "waiting"] == ["starting", "running", "succeeded"]
        (starting,) = [event for event in a.journal() if event.get("state") == "starting" and "replica" not in event]
        assert starting["time"][:19] >= rfc3339(start_at)[:19]
        assert a.states()[0] == b.states()[0] == "waiting"

    run_scenario(scenario)


def test_a_scheduled_run_waits_for_the_holder_of_its_gpus(run_scenario: RunScenario) -> None:
    async def scenario(cluster: KeeperCluster) -> None:
        mine = gpu()
        (a,) = await cluster.add("gpu-a", later=True, gpus=[mine])
        assert not is_locked(mine)
        other = socket.socket(socket.AF_UNIX)
        other.bind(f"\0torchyard/gpu/{mine}")
        other.listen()
        await cluster.begin(replica("chief-0", "gpu-a", FOREVER, gpus=[mine]), start_at=time.time() + 0.5)
        await eventually(lambda: "its time has come, but on gpu-a" in a.reason())
        assert mine in a.reason()
        other.close()
        await eventually(lambda: a.states()[-1] == "running")
        assert is_locked(mine)
        await a.call("stop", reason="enough")
        assert (await cluster.end())["state"] == "stopped"
        assert not is_locked(mine)

    run_scenario(scenario)


def test_a_run_whose_gpus_stay_locked_fails_with_the_holder(run_scenario: RunScenario) -> None:
    async def scenario(cluster: KeeperCluster) -> None:
        mine = gpu()
        await cluster.add("gpu-a", later=True, gpus=[mine], timeouts={"gpus_within_s": 2.5})
        with socket.socket(socket.AF_UNIX) as other:
            other.bind(f"\0torchyard/gpu/{mine}")
            other.listen()
            await cluster.begin(replica("chief-0", "gpu-a", OK, gpus=[mine]), start_at=time.time())
            ended = await cluster.end()
        assert ended["state"] == "failed"
        assert ended["reason"].startswith(f"gpu-a: GPU {mine} is held by")

    run_scenario(scenario)


@pytest.mark.parametrize("fresh", [True, False])
def test_without_a_fresh_calendar_a_run_begins_only_on_idle_gpus(
    run_scenario: RunScenario, tmp_path: Path, fresh: bool
) -> None:
    mine = gpu()
    nvml, gpu_file = build_fake_nvml(tmp_path / "nvml"), tmp_path / "gpus"
    write_gpus(gpu_file, [FakeGpu(mine, compute=[(os.getpid(), 100)])])

    async def scenario(cluster: KeeperCluster) -> None:
        environment = {"LD_LIBRARY_PATH": str(nvml), "FAKE_NVML_FILE": str(gpu_file)}
        (a,) = await cluster.add("gpu-a", later=True, gpus=[mine], environment=environment)
        now = time.time()
        own = booking("kim", now, now + HOUR, mine)
        await a.send_calendar(own, taken=now if fresh else now - 2 * HOUR)
        await cluster.begin(
            replica("chief-0", "gpu-a", OK, gpus=[mine]),
            start_at=now,
            booking={"id": own["id"], "owner": "kim", "end": own["end"], "stop_at_end": False},
        )
        if not fresh:
            await eventually(lambda: f"(PID {os.getpid()})" in a.reason())
            assert not is_locked(mine)
            write_gpus(gpu_file, [FakeGpu(mine)])
        assert (await cluster.end())["state"] == "succeeded"

    run_scenario(scenario)


def test_a_waiting_run_that_is_stopped_leaves_nothing(run_scenario: RunScenario) -> None:
    async def scenario(cluster: KeeperCluster) -> None:
        mine = gpu()
        a, b = await cluster.add("gpu-a", "gpu-b", later=True, gpus=[mine])
        await cluster.begin(
            replica("chief-0", "gpu-a", OK), replica("worker-0", "gpu-b", OK), start_at=time.time() + HOUR
        )
        await eventually(lambda: "starts at" in b.reason())
        await b.call("stop", reason="not tonight")
        ended = await cluster.end()
        assert (ended["state"], ended["reason"]) == ("stopped", "not tonight")
        assert "starting" not in a.states()
        assert not is_locked(mine)

    run_scenario(scenario)


def test_a_host_lost_before_the_start_is_reported(run_scenario: RunScenario) -> None:
    async def scenario(cluster: KeeperCluster) -> None:
        timeouts = {"lease_s": 1.0, "heartbeat_s": 0.2, "gpus_within_s": 0.5}
        a, b = await cluster.add("gpu-a", "gpu-b", later=True, timeouts=timeouts)
        start_at = time.time() + 4
        await cluster.begin(replica("chief-0", "gpu-a", OK), replica("worker-0", "gpu-b", OK), start_at=start_at)
        await eventually(lambda: "starts at" in b.reason())
        b.process.kill()
        b.process.wait()
        await eventually(
            lambda: any(reason.startswith("starts at") and "gpu-b was lost" in reason for reason in reasons(a))
        )
        del cluster.hosts["gpu-b"]
        ended = await cluster.end()
        assert ended["state"] == "failed"
        assert "gpu-b" in ended["reason"]

    run_scenario(scenario)


def test_a_moved_or_cancelled_booking_changes_its_run(run_scenario: RunScenario) -> None:
    async def scenario(cluster: KeeperCluster) -> None:
        (a,) = await cluster.add("gpu-a", later=True)
        now = time.time()
        mine = {"id": "mine", "owner": "kim", "end": now + 2 * HOUR}
        await cluster.begin(replica("chief-0", "gpu-a", OK, gpus=["GPU-x"]), start_at=now + HOUR, booking=mine)
        await eventually(lambda: "starts at" in a.reason())
        await a.send_calendar(booking("kim", now + 3 * HOUR, now + 4 * HOUR, "GPU-x", id="mine"))
        await eventually(lambda: a.reason() == f"starts at {rfc3339(float(int(now + 3 * HOUR)))}")
        await a.send_calendar(taken=now + 61)
        ended = await cluster.end()
        assert ended["state"] == "stopped"
        assert "not in the calendar any more" in ended["reason"]

    run_scenario(scenario)

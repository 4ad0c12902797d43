"""Runs that wait for their time: real keepers, seconds instead of hours."""

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

Play = Callable[[Callable[[KeeperCluster], Awaitable[None]]], None]

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


def test_a_run_waits_on_all_hosts_takes_its_gpus_at_its_time_and_starts_by_itself(play: Play) -> None:
    async def story(yard: KeeperCluster) -> None:
        of_a, of_b = gpu(), gpu()
        (a,) = await yard.add("gpu-a", later=True, gpus=[of_a])
        (b,) = await yard.add("gpu-b", later=True, gpus=[of_b], data_address="127.0.0.2")
        start_at = float(int(time.time()) + 3)
        await yard.begin(
            replica("chief-0", "gpu-a", OK, gpus=[of_a]),
            replica("worker-0", "gpu-b", OK, gpus=[of_b]),
            start_at=rfc3339(start_at),
        )
        for host in (a, b):
            await eventually(lambda host=host: any("starts at" in reason for reason in reasons(host)))
            assert host.connection is not None
            host.connection.close()  # as if all desktops and daemons had gone
        assert not (is_locked(of_a) or is_locked(of_b)) or time.time() >= start_at
        ended = await yard.end()
        assert ended["state"] == "succeeded"
        assert [state for state in a.states() if state != "waiting"] == ["starting", "running", "succeeded"]
        (starting,) = [event for event in a.journal() if event.get("state") == "starting" and "replica" not in event]
        assert starting["time"][:19] >= rfc3339(start_at)[:19]
        assert a.states()[0] == b.states()[0] == "waiting"

    play(story)


def test_gpus_are_locked_only_at_the_start_and_who_still_has_them_is_waited_for(play: Play) -> None:
    async def story(yard: KeeperCluster) -> None:
        mine = gpu()
        (a,) = await yard.add("gpu-a", later=True, gpus=[mine])
        assert not is_locked(mine)
        other = socket.socket(socket.AF_UNIX)
        other.bind(f"\0torchyard/gpu/{mine}")
        other.listen()
        await yard.begin(replica("chief-0", "gpu-a", FOREVER, gpus=[mine]), start_at=time.time() + 0.5)
        await eventually(lambda: "its time has come, but on gpu-a" in a.reason())
        assert mine in a.reason()
        other.close()
        await eventually(lambda: a.states()[-1] == "running")
        assert is_locked(mine)
        await a.call("stop", reason="enough")
        assert (await yard.end())["state"] == "stopped"
        assert not is_locked(mine)

    play(story)


def test_a_run_whose_gpus_stay_taken_gives_up_and_says_who_has_them(play: Play) -> None:
    async def story(yard: KeeperCluster) -> None:
        mine = gpu()
        await yard.add("gpu-a", later=True, gpus=[mine], patience={"gpus_within_s": 2.5})
        with socket.socket(socket.AF_UNIX) as other:
            other.bind(f"\0torchyard/gpu/{mine}")
            other.listen()
            await yard.begin(replica("chief-0", "gpu-a", OK, gpus=[mine]), start_at=time.time())
            ended = await yard.end()
        assert ended["state"] == "failed"
        assert ended["reason"].startswith(f"gpu-a: GPU {mine} is held by")

    play(story)


@pytest.mark.parametrize("fresh", [True, False])
def test_without_a_fresh_calendar_it_begins_only_on_idle_gpus(play: Play, tmp_path: Path, fresh: bool) -> None:
    mine = gpu()
    nvml, told = build_fake_nvml(tmp_path / "nvml"), tmp_path / "gpus"
    write_gpus(told, [FakeGpu(mine, compute=[(os.getpid(), 100)])])

    async def story(yard: KeeperCluster) -> None:
        environment = {"LD_LIBRARY_PATH": str(nvml), "FAKE_NVML_FILE": str(told)}
        (a,) = await yard.add("gpu-a", later=True, gpus=[mine], environment=environment)
        now = time.time()
        own = booking("kim", now, now + HOUR, mine)
        await a.learn(own, taken=now if fresh else now - 2 * HOUR)
        await yard.begin(
            replica("chief-0", "gpu-a", OK, gpus=[mine]),
            start_at=now,
            booking={"id": own["id"], "owner": "kim", "end": own["end"], "stop_at_end": False},
        )
        if not fresh:
            await eventually(lambda: f"(PID {os.getpid()})" in a.reason())
            assert not is_locked(mine)
            write_gpus(told, [FakeGpu(mine)])
        assert (await yard.end())["state"] == "succeeded"

    play(story)


def test_a_waiting_run_that_is_stopped_leaves_nothing(play: Play) -> None:
    async def story(yard: KeeperCluster) -> None:
        mine = gpu()
        a, b = await yard.add("gpu-a", "gpu-b", later=True, gpus=[mine])
        await yard.begin(replica("chief-0", "gpu-a", OK), replica("worker-0", "gpu-b", OK), start_at=time.time() + HOUR)
        await eventually(lambda: "starts at" in b.reason())
        await b.call("stop", reason="not tonight")
        ended = await yard.end()
        assert (ended["state"], ended["reason"]) == ("stopped", "not tonight")
        assert "starting" not in a.states()
        assert not is_locked(mine)

    play(story)


def test_a_host_that_is_lost_while_it_waits_is_said(play: Play) -> None:
    async def story(yard: KeeperCluster) -> None:
        patience = {"lease_s": 1.0, "heartbeat_s": 0.2, "gpus_within_s": 0.5}
        a, b = await yard.add("gpu-a", "gpu-b", later=True, patience=patience)
        start_at = time.time() + 4
        await yard.begin(replica("chief-0", "gpu-a", OK), replica("worker-0", "gpu-b", OK), start_at=start_at)
        await eventually(lambda: "starts at" in b.reason())
        b.process.kill()
        b.process.wait()
        await eventually(lambda: any(told.startswith("starts at") and "gpu-b was lost" in told for told in reasons(a)))
        del yard.hosts["gpu-b"]
        ended = await yard.end()
        assert ended["state"] == "failed"
        assert "gpu-b" in ended["reason"]

    play(story)


def test_a_booking_that_was_moved_or_cancelled_takes_its_run_along(play: Play) -> None:
    async def story(yard: KeeperCluster) -> None:
        (a,) = await yard.add("gpu-a", later=True)
        now = time.time()
        mine = {"id": "mine", "owner": "kim", "end": now + 2 * HOUR}
        await yard.begin(replica("chief-0", "gpu-a", OK, gpus=["GPU-x"]), start_at=now + HOUR, booking=mine)
        await eventually(lambda: "starts at" in a.reason())
        await a.learn(booking("kim", now + 3 * HOUR, now + 4 * HOUR, "GPU-x", id="mine"))
        await eventually(lambda: a.reason() == f"starts at {rfc3339(float(int(now + 3 * HOUR)))}")
        await a.learn(taken=now + 61)
        ended = await yard.end()
        assert ended["state"] == "stopped"
        assert "not in the calendar any more" in ended["reason"]

    play(story)

"""Tests of runs whose booking ends, with real keepers and with bookings that last a few seconds."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from tests.agent.enforcement.calendars import HOUR, booking
from tests.agent.keeper.keeper_cluster import KeeperCluster, replica, shell
from tests.waiting import eventually
from torchyard_agent.protocol import journal_replay
from torchyard_agent.protocol.timestamps import rfc3339

RunScenario = Callable[[Callable[[KeeperCluster], Awaitable[None]]], None]

FOREVER = shell("while :; do sleep 0.1; done")
SAVES = shell("trap 'echo saved; exit 0' TERM; while :; do sleep 0.05; done")


def test_a_run_is_warned_and_ended_before_another_owners_booking(run_scenario: RunScenario) -> None:
    async def scenario(cluster: KeeperCluster) -> None:
        timeouts = {"booking_warn_s": 4.0, "booking_notice_s": 0.5}
        (a,) = await cluster.add("gpu-a", timeouts=timeouts)
        now = time.time()
        mine = {"id": "of-kim", "owner": "kim", "end": now + 5}
        notify = 'echo "$TORCHYARD_STATE $TORCHYARD_CAUSE" >> notified'
        await cluster.begin(
            replica("chief-0", "gpu-a", SAVES, gpus=["GPU-x"]), booking=mine, stop_grace_s=1.0, notify=notify
        )
        await eventually(lambda: a.states()[-1] == "running")
        own = booking("kim", now - 60, now + 5, "GPU-x")
        await a.send_calendar(own, booking("lee", now + 5, now + 100, "GPU-x"))
        (warning,) = await eventually(lambda: [one for one in a.journal() if one["event"] == "booking_ends"])
        assert "booked by lee" in warning["reason"]
        assert a.states()[-1] == "running"
        assert journal_replay.fold("run", a.journal())["booking_ends"]["booking"] == "of-kim"
        ended = await cluster.end()
        assert ended["state"] == "stopped"
        assert ended["reason"].startswith("stopped at its booking's end: its GPUs are booked by lee")
        (leaves,) = [one for one in a.journal() if one.get("state") == "stopping" and one["event"] == "run_state"]
        assert leaves["time"] < rfc3339(now + 5.0)
        assert "saved" in a.output("chief-0")
        text = (a.run_dir / "work" / "notified").read_text()
        assert text.startswith("running its GPUs are booked by lee"), text

    run_scenario(scenario)


def test_a_run_continues_if_no_booking_follows_or_the_calendar_is_unknown(run_scenario: RunScenario) -> None:
    async def scenario(cluster: KeeperCluster) -> None:
        (a,) = await cluster.add("gpu-a", timeouts={"booking_warn_s": 0.2, "booking_notice_s": 0.1})
        now = time.time()
        await cluster.begin(
            replica("chief-0", "gpu-a", FOREVER, gpus=["GPU-x"]),
            booking={"id": "of-kim", "owner": "kim", "end": now + 0.5},
            stop_grace_s=0.1,
        )
        await eventually(lambda: a.states()[-1] == "running")
        follows = booking("lee", now + 1, now + 100, "GPU-x")
        await a.send_calendar(follows, taken=now - 2 * HOUR)
        await asyncio.sleep(1.5)
        assert a.states()[-1] == "running"
        await a.call("stop", reason="enough")
        assert (await cluster.end())["reason"] == "enough"

    run_scenario(scenario)


def test_a_run_that_stops_at_its_end_needs_no_calendar(run_scenario: RunScenario) -> None:
    async def scenario(cluster: KeeperCluster) -> None:
        await cluster.add("gpu-a", timeouts={"booking_warn_s": 1.0, "booking_notice_s": 0.2})
        own = {"id": "mine", "owner": "kim", "end": time.time() + 1.5, "stop_at_end": True}
        await cluster.begin(replica("chief-0", "gpu-a", SAVES), booking=own, stop_grace_s=0.5)
        ended = await cluster.end()
        assert ended["state"] == "stopped"
        assert "it is to stop then" in ended["reason"]

    run_scenario(scenario)

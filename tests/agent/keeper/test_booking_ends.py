"""Runs whose booking ends: real keepers, seconds instead of hours."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from tests.agent.enforcement.calendars import HOUR, booking
from tests.agent.keeper.keeper_cluster import KeeperCluster, replica, shell
from tests.waiting import eventually
from torchyard_agent.protocol import journal_replay
from torchyard_agent.protocol.timestamps import rfc3339

Play = Callable[[Callable[[KeeperCluster], Awaitable[None]]], None]

FOREVER = shell("while :; do sleep 0.1; done")
SAVES = shell("trap 'echo saved; exit 0' TERM; while :; do sleep 0.05; done")


def test_a_run_is_warned_saves_and_leaves_where_somebody_elses_booking_follows(play: Play) -> None:
    async def story(yard: KeeperCluster) -> None:
        patience = {"booking_warn_s": 4.0, "booking_notice_s": 0.5}
        (a,) = await yard.add("gpu-a", patience=patience)
        now = time.time()
        mine = {"id": "of-kim", "owner": "kim", "end": now + 5}
        told = 'echo "$TORCHYARD_STATE $TORCHYARD_CAUSE" >> told'
        await yard.begin(
            replica("chief-0", "gpu-a", SAVES, gpus=["GPU-x"]), booking=mine, stop_grace_s=1.0, notify=told
        )
        await eventually(lambda: a.states()[-1] == "running")
        own = booking("kim", now - 60, now + 5, "GPU-x")
        await a.learn(own, booking("lee", now + 5, now + 100, "GPU-x"))
        (warning,) = await eventually(lambda: [one for one in a.journal() if one["event"] == "booking_ends"])
        assert "booked by lee" in warning["reason"]
        assert a.states()[-1] == "running"
        assert journal_replay.fold("run", a.journal())["booking_ends"]["booking"] == "of-kim"
        ended = await yard.end()
        assert ended["state"] == "stopped"
        assert ended["reason"].startswith("stopped at its booking's end: its GPUs are booked by lee")
        (leaves,) = [one for one in a.journal() if one.get("state") == "stopping" and one["event"] == "run_state"]
        assert leaves["time"] < rfc3339(now + 5.0)
        assert "saved" in a.output("chief-0")
        said = (a.run_dir / "work" / "told").read_text()
        assert said.startswith("running its GPUs are booked by lee"), said

    play(story)


def test_a_run_goes_on_where_nobody_follows_or_nobody_knows(play: Play) -> None:
    async def story(yard: KeeperCluster) -> None:
        (a,) = await yard.add("gpu-a", patience={"booking_warn_s": 0.2, "booking_notice_s": 0.1})
        now = time.time()
        await yard.begin(
            replica("chief-0", "gpu-a", FOREVER, gpus=["GPU-x"]),
            booking={"id": "of-kim", "owner": "kim", "end": now + 0.5},
            stop_grace_s=0.1,
        )
        await eventually(lambda: a.states()[-1] == "running")
        follows = booking("lee", now + 1, now + 100, "GPU-x")
        await a.learn(follows, taken=now - 2 * HOUR)
        await asyncio.sleep(1.5)
        assert a.states()[-1] == "running"
        await a.call("stop", reason="enough")
        assert (await yard.end())["reason"] == "enough"

    play(story)


def test_one_that_is_to_stop_at_its_end_needs_no_calendar(play: Play) -> None:
    async def story(yard: KeeperCluster) -> None:
        await yard.add("gpu-a", patience={"booking_warn_s": 1.0, "booking_notice_s": 0.2})
        own = {"id": "mine", "owner": "kim", "end": time.time() + 1.5, "stop_at_end": True}
        await yard.begin(replica("chief-0", "gpu-a", SAVES), booking=own, stop_grace_s=0.5)
        ended = await yard.end()
        assert ended["state"] == "stopped"
        assert "it is to stop then" in ended["reason"]

    play(story)

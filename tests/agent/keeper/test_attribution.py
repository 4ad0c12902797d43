"""Who launched a run and who asked for its end is in its journal, as the desktops said it."""

from __future__ import annotations

import os
from typing import Any

from tests.agent.keeper.conftest import Play
from tests.agent.keeper.keeper_cluster import Host, KeeperCluster, replica, shell
from tests.waiting import eventually
from torchyard_agent.protocol import journal_replay
from torchyard_agent.protocol.attribution import LONGEST, attribution_entry, user_of

FOREVER = shell("exec sleep 1000")
LAUNCH = {"by": "kim", "from": "laptop", "what": "launch", "uid": os.getuid()}
BY_KIM = {"record": {"launched_from": "kim@laptop"}}


def asked_of(host: Host) -> list[dict[str, Any]]:
    told = [event for event in host.journal() if event["event"] == "asked"]
    return [{name: event[name] for name in event if name not in ("epoch", "seq", "time", "event")} for event in told]


def stop_by(user: str, desktop: str, *, force: bool = False) -> dict[str, Any]:
    return {"by": user, "from": desktop, "what": "stop", "uid": os.getuid(), "force": force}


def test_a_stop_on_any_host_is_in_the_whole_runs_journal(play: Play) -> None:
    async def story(yard: KeeperCluster) -> None:
        a, b = await yard.add("gpu-a", "gpu-b", **BY_KIM)
        await yard.begin(replica("chief-0", "gpu-a", FOREVER), replica("worker-0", "gpu-b", FOREVER))
        await eventually(lambda: "running" in b.states())

        await b.call("stop", by="lee@tower", force=False)

        ended = await yard.end()
        assert (ended["state"], ended["reason"]) == ("stopped", "stopped by lee@tower")
        assert asked_of(a) == [LAUNCH, stop_by("lee", "tower")]
        assert asked_of(b) == [LAUNCH, stop_by("lee", "tower")]
        assert a.journal()[0]["event"] == "asked"
        view = journal_replay.fold(yard.run_id, a.journal())
        assert [(told["what"], user_of(told)) for told in view["asked"]] == [
            ("launch", "kim@laptop"),
            ("stop", "lee@tower"),
        ]

    play(story)


def test_each_who_asks_is_told_and_the_first_gives_the_reason(play: Play) -> None:
    async def story(yard: KeeperCluster) -> None:
        (a,) = await yard.add("gpu-a", **BY_KIM)
        await yard.begin(replica("worker-0", "gpu-a", shell("trap '' TERM; while :; do sleep 0.1; done")))
        await eventually(lambda: "running" in a.states())
        await a.call("stop", by="kim@laptop")
        await eventually(lambda: "stopping" in a.states())
        await a.call("stop", by="lee@tower", force=True)
        assert (await yard.end())["reason"] == "stopped by kim@laptop"
        assert asked_of(a) == [LAUNCH, stop_by("kim", "laptop"), stop_by("lee", "tower", force=True)]

    play(story)


def test_a_stop_before_the_run_has_begun_is_told_too(play: Play) -> None:
    async def story(yard: KeeperCluster) -> None:
        (a,) = await yard.add("gpu-a", **BY_KIM)
        await a.call("stop", reason="taken back by kim@laptop while it was launched", by="kim@laptop", force=True)
        await yard.end()
        assert asked_of(a) == [LAUNCH, stop_by("kim", "laptop", force=True)]
        assert a.ended()["reason"] == "taken back by kim@laptop while it was launched"

    play(story)


def test_a_desktop_that_does_not_say_who_it_is_is_nobody(play: Play) -> None:
    async def story(yard: KeeperCluster) -> None:
        (a,) = await yard.add("gpu-a")
        await yard.begin(replica("worker-0", "gpu-a", FOREVER))
        await a.call("stop", reason="enough")
        assert (await yard.end())["reason"] == "enough"
        assert [user_of(told) for told in asked_of(a)] == ["", ""]

    play(story)


def test_a_shutdown_of_the_host_is_nobodys_wish(play: Play) -> None:
    async def story(yard: KeeperCluster) -> None:
        (a,) = await yard.add("gpu-a", **BY_KIM)
        await yard.begin(replica("worker-0", "gpu-a", FOREVER))
        await eventually(lambda: "running" in a.states())
        a.process.terminate()
        await yard.end()
        assert asked_of(a) == [LAUNCH]

    play(story)


def test_a_claim_is_one_short_line() -> None:
    assert attribution_entry("stop", "lee\n\x1b[2J@tower")["by"] == "lee[2J"
    assert len(user_of(attribution_entry("stop", "x" * 5000))) == LONGEST
    assert user_of(attribution_entry("stop", "kim")) == "kim"
    assert user_of(attribution_entry("stop", "kim@example.org@laptop")) == "kim@example.org@laptop"
    assert user_of(attribution_entry("stop", ["no", "text"])) == ""

"""Tests that a run's journal names the users who launched and stopped the run."""

from __future__ import annotations

import os
from typing import Any

from tests.agent.keeper.conftest import RunScenario
from tests.agent.keeper.keeper_cluster import Host, KeeperCluster, replica, shell
from tests.waiting import eventually
from torchyard_agent.protocol import journal_replay
from torchyard_agent.protocol.attribution import LONGEST, attribution_entry, user_of

FOREVER = shell("exec sleep 1000")
LAUNCH = {"by": "kim", "from": "laptop", "what": "launch", "uid": os.getuid()}
BY_KIM = {"record": {"launched_from": "kim@laptop"}}


def asked_of(host: Host) -> list[dict[str, Any]]:
    entries = [event for event in host.journal() if event["event"] == "asked"]
    return [{name: event[name] for name in event if name not in ("epoch", "seq", "time", "event")} for event in entries]


def stop_by(user: str, desktop: str, *, force: bool = False) -> dict[str, Any]:
    return {"by": user, "from": desktop, "what": "stop", "uid": os.getuid(), "force": force}


def test_a_stop_on_any_host_is_in_the_whole_runs_journal(run_scenario: RunScenario) -> None:
    async def scenario(cluster: KeeperCluster) -> None:
        a, b = await cluster.add("gpu-a", "gpu-b", **BY_KIM)
        await cluster.begin(replica("chief-0", "gpu-a", FOREVER), replica("worker-0", "gpu-b", FOREVER))
        await eventually(lambda: "running" in b.states())

        await b.call("stop", by="lee@tower", force=False)

        ended = await cluster.end()
        assert (ended["state"], ended["reason"]) == ("stopped", "stopped by lee@tower")
        assert asked_of(a) == [LAUNCH, stop_by("lee", "tower")]
        assert asked_of(b) == [LAUNCH, stop_by("lee", "tower")]
        assert a.journal()[0]["event"] == "asked"
        view = journal_replay.fold(cluster.run_id, a.journal())
        assert [(entry["what"], user_of(entry)) for entry in view["asked"]] == [
            ("launch", "kim@laptop"),
            ("stop", "lee@tower"),
        ]

    run_scenario(scenario)


def test_each_stop_request_is_journaled_and_the_first_gives_the_reason(run_scenario: RunScenario) -> None:
    async def scenario(cluster: KeeperCluster) -> None:
        (a,) = await cluster.add("gpu-a", **BY_KIM)
        await cluster.begin(replica("worker-0", "gpu-a", shell("trap '' TERM; while :; do sleep 0.1; done")))
        await eventually(lambda: "running" in a.states())
        await a.call("stop", by="kim@laptop")
        await eventually(lambda: "stopping" in a.states())
        await a.call("stop", by="lee@tower", force=True)
        assert (await cluster.end())["reason"] == "stopped by kim@laptop"
        assert asked_of(a) == [LAUNCH, stop_by("kim", "laptop"), stop_by("lee", "tower", force=True)]

    run_scenario(scenario)


def test_a_stop_before_the_run_has_begun_is_journaled(run_scenario: RunScenario) -> None:
    async def scenario(cluster: KeeperCluster) -> None:
        (a,) = await cluster.add("gpu-a", **BY_KIM)
        await a.call("stop", reason="cancelled by kim@laptop during the launch", by="kim@laptop", force=True)
        await cluster.end()
        assert asked_of(a) == [LAUNCH, stop_by("kim", "laptop", force=True)]
        assert a.ended()["reason"] == "cancelled by kim@laptop during the launch"

    run_scenario(scenario)


def test_a_desktop_without_a_name_has_an_empty_entry(run_scenario: RunScenario) -> None:
    async def scenario(cluster: KeeperCluster) -> None:
        (a,) = await cluster.add("gpu-a")
        await cluster.begin(replica("worker-0", "gpu-a", FOREVER))
        await a.call("stop", reason="enough")
        assert (await cluster.end())["reason"] == "enough"
        assert [user_of(entry) for entry in asked_of(a)] == ["", ""]

    run_scenario(scenario)


def test_a_shutdown_of_the_host_has_no_user(run_scenario: RunScenario) -> None:
    async def scenario(cluster: KeeperCluster) -> None:
        (a,) = await cluster.add("gpu-a", **BY_KIM)
        await cluster.begin(replica("worker-0", "gpu-a", FOREVER))
        await eventually(lambda: "running" in a.states())
        a.process.terminate()
        await cluster.end()
        assert asked_of(a) == [LAUNCH]

    run_scenario(scenario)


def test_a_claim_is_one_short_line() -> None:
    assert attribution_entry("stop", "lee\n\x1b[2J@tower")["by"] == "lee[2J"
    assert len(user_of(attribution_entry("stop", "x" * 5000))) == LONGEST
    assert user_of(attribution_entry("stop", "kim")) == "kim"
    assert user_of(attribution_entry("stop", "kim@example.org@laptop")) == "kim@example.org@laptop"
    assert user_of(attribution_entry("stop", ["no", "text"])) == ""

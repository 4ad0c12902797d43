"""Tests of copying checkpoints between the hosts of a run, with real keepers and sockets."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from tests.agent.keeper.checkpoints.sample_checkpoints import folder_of, same, save, there
from tests.agent.keeper.conftest import RunScenario
from tests.agent.keeper.keeper_cluster import Host, KeeperCluster, replica, shell
from tests.agent.keeper.link.test_gang_link import Relay
from tests.waiting import eventually
from torchyard_agent.keeper.checkpoints import checkpoint_folders

UNTIL_GO = shell("while [ ! -e go ]; do sleep 0.02; done")


def checkpoints(host: Host) -> Path:
    return folder_of(host.run_dir)


def go(*hosts: Host) -> None:
    for host in hosts:
        (host.run_dir / "work" / "go").touch()


def carried(host: Host) -> list[tuple[str, str]]:
    """Returns the host and the checkpoint of each copy that the primary's journal records."""
    return [
        (event["host"], event["checkpoint"])
        for event in host.journal()
        if event["event"] == "checkpoint_carried" and "problem" not in event
    ]


def test_checkpoints_are_copied_to_evaluator_and_peer_which_keep_two(run_scenario: RunScenario) -> None:
    async def scenario(cluster: KeeperCluster) -> None:
        chief, peer, scorer, idle = await cluster.add("gpu-a", "gpu-b", "gpu-c", "gpu-d")
        replicas = [replica("chief-0", "gpu-a", UNTIL_GO), replica("worker-0", "gpu-b", UNTIL_GO)]
        others = [replica("evaluator-0", "gpu-c", UNTIL_GO), replica("ps-0", "gpu-d", UNTIL_GO)]
        await cluster.begin(*replicas, *others, carry=True)
        await eventually(lambda: "running" in chief.states())
        names = []
        for step in (1, 2, 3):
            names.append(save(checkpoints(chief), step, 700_000))
            for host in (peer, scorer):
                await eventually(lambda host=host: there(checkpoints(host))[-1:] == names[-1:])
                assert same(checkpoints(chief) / names[-1], checkpoints(host) / names[-1])
        await eventually(lambda: there(checkpoints(peer)) == there(checkpoints(scorer)) == names[1:])
        assert there(checkpoints(idle)) == []
        await eventually(
            lambda: sorted(carried(chief)) == [(one, name) for one in ("gpu-b", "gpu-c") for name in names]
        )
        go(chief, peer)
        assert (await cluster.end())["state"] == "succeeded"

    run_scenario(scenario)


def test_incomplete_checkpoints_are_not_copied(
    run_scenario: RunScenario,
) -> None:
    async def scenario(cluster: KeeperCluster) -> None:
        chief, peer = await cluster.add("gpu-a", "gpu-b")
        await cluster.begin(replica("chief-0", "gpu-a", UNTIL_GO), replica("worker-0", "gpu-b", UNTIL_GO), carry=True)
        await eventually(lambda: "running" in chief.states())
        whole = save(checkpoints(chief), 1)
        cut = save(checkpoints(chief), 2)
        os.truncate(checkpoints(chief) / cut / "model.pt", 10)

        await eventually(lambda: there(checkpoints(peer)) == [whole])
        await asyncio.sleep(1.2)

        assert there(checkpoints(peer)) == [whole]
        go(chief, peer)
        await cluster.end()

    run_scenario(scenario)


def test_nothing_is_copied_if_the_hosts_share_a_folder(run_scenario: RunScenario) -> None:
    async def scenario(cluster: KeeperCluster) -> None:
        chief, peer = await cluster.add("gpu-a", "gpu-b")
        await cluster.begin(replica("chief-0", "gpu-a", UNTIL_GO), replica("worker-0", "gpu-b", UNTIL_GO))
        await eventually(lambda: "running" in chief.states())
        save(checkpoints(chief), 1)
        await asyncio.sleep(1.5)
        assert there(checkpoints(peer)) == []
        go(chief, peer)
        await cluster.end()

    run_scenario(scenario)


def test_a_chief_without_checkpoints_gets_the_newest_before_it_starts(run_scenario: RunScenario) -> None:
    async def scenario(cluster: KeeperCluster) -> None:
        chief, peer = await cluster.add("gpu-a", "gpu-b")
        name = save(checkpoints(peer), 7, 300_000)
        look = shell("ls $OUTPUTS/checkpoints > seen; while [ ! -e go ]; do sleep 0.02; done")
        outputs = {"OUTPUTS": str(chief.run_dir / "outputs"), "TORCHYARD_REPLICA": "chief-0"}
        await cluster.begin(
            replica("chief-0", "gpu-a", look, env=outputs), replica("worker-0", "gpu-b", UNTIL_GO), carry=True
        )
        seen = chief.run_dir / "work" / "seen"
        await eventually(lambda: seen.exists() and seen.read_text() == f"{name}\n")
        assert same(checkpoints(chief) / name, checkpoints(peer) / name)
        assert carried(chief) == [("gpu-a", name)]
        go(chief, peer)
        await cluster.end()

    run_scenario(scenario)


def test_a_restarted_chief_without_checkpoints_gets_the_newest_first(run_scenario: RunScenario) -> None:
    async def scenario(cluster: KeeperCluster) -> None:
        chief, peer = await cluster.add("gpu-a", "gpu-b")
        fails = shell(
            "ls $OUTPUTS/checkpoints > seen.$TORCHELASTIC_RESTART_COUNT;"
            " while [ ! -e go ]; do [ -e fail ] && rm fail && exit 3; sleep 0.02; done"
        )
        outputs = {"OUTPUTS": str(chief.run_dir / "outputs"), "TORCHYARD_REPLICA": "chief-0"}
        again = [replica("chief-0", "gpu-a", fails, env=outputs), replica("worker-0", "gpu-b", UNTIL_GO)]
        await cluster.begin(*again, carry=True, max_restarts=1, failure_grace_s=0.1)
        await eventually(lambda: "running" in chief.states())
        name = save(checkpoints(chief), 1)
        await eventually(lambda: carried(chief) == [("gpu-b", name)])

        (checkpoints(chief) / name).rename(checkpoints(chief) / "taken-away")
        (chief.run_dir / "work" / "fail").touch()

        await eventually(lambda: carried(chief)[1:] == [("gpu-a", name)])
        assert same(checkpoints(chief) / name, checkpoints(peer) / name)
        await eventually(lambda: "running" in chief.states()[chief.states().index("restarting") :])
        go(chief, peer)
        assert (await cluster.end())["state"] == "succeeded"

    run_scenario(scenario)


class Bottleneck(Relay):
    """A relay that forwards only the first connection of the gang link; it accepts later connections but does not
    forward them.
    """

    waiting = 0

    async def _on_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._writers:
            self.waiting += 1
            self._writers.append(writer)
        else:
            await super()._on_connection(reader, writer)


def test_a_run_can_be_stopped_while_its_chief_waits_for_a_checkpoint(run_scenario: RunScenario) -> None:
    async def scenario(cluster: KeeperCluster) -> None:
        chief, peer = await cluster.add("gpu-a", "gpu-b")
        save(checkpoints(peer), 7)
        bottleneck = Bottleneck(chief.prepared["address"], chief.prepared["gang_port"])
        await bottleneck.open()
        replicas = [replica("chief-0", "gpu-a", UNTIL_GO), replica("worker-0", "gpu-b", UNTIL_GO)]
        await cluster.begin(*replicas, carry=True, through=bottleneck.member)
        await eventually(lambda: bottleneck.waiting)
        assert "running" not in chief.states()

        await chief.call("stop", reason="enough", force=False)

        assert (await cluster.end())["state"] == "stopped"
        bottleneck.close()

    run_scenario(scenario)


def test_a_new_run_links_the_newest_checkpoint_of_an_older_one(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    save(folder_of(old), 1)
    name = save(folder_of(old), 2)
    cut = save(folder_of(old), 3)
    os.truncate(folder_of(old) / cut / "model.pt", 1)
    part = folder_of(old) / "parts" / "ps-0" / f"{name}.pt"
    part.parent.mkdir(parents=True)
    part.write_bytes(b"shard")

    assert checkpoint_folders.seed(str(old), str(new)) == name

    assert there(folder_of(new)) == ["parts", name]
    assert (folder_of(new) / name / "model.pt").samefile(folder_of(old) / name / "model.pt")
    assert (folder_of(new) / "parts" / "ps-0" / f"{name}.pt").read_bytes() == b"shard"


def test_saved_checkpoints_are_journaled_once_also_on_a_single_host(run_scenario: RunScenario) -> None:
    async def scenario(cluster: KeeperCluster) -> None:
        (chief,) = await cluster.add("gpu-a")
        await cluster.begin(replica("chief-0", "gpu-a", UNTIL_GO), carry=True)
        await eventually(lambda: "running" in chief.states())

        def saved() -> list[str]:
            return [event["checkpoint"] for event in chief.journal() if event["event"] == "checkpoint_saved"]

        first = save(checkpoints(chief), 10, 1000)
        await eventually(lambda: saved() == [first])
        last = save(checkpoints(chief), 20, 1000)
        go(chief)  # The run ends before the keeper finds the last checkpoint.
        assert (await cluster.end())["state"] == "succeeded"
        assert saved() == [first, last]

    run_scenario(scenario)

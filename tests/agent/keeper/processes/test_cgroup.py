"""Tests of a run's control group: orphans are attributed to the run, and processes that fork endlessly are killed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.agent.keeper.conftest import RunScenario
from tests.agent.keeper.keeper_cluster import KeeperCluster, replica, shell
from tests.waiting import eventually
from torchyard_agent.keeper.processes import cgroup

needs_cgroup = pytest.mark.skipif(
    cgroup.create("probe", "probe") is None, reason="this login may not make a cgroup v2 here"
)
cgroup.end_leftovers("probe", "probe")


def groups_of(cluster: KeeperCluster) -> list[Path]:
    own = cgroup._own_group()
    assert own is not None
    return list(Path(own).glob(f"{cgroup.PREFIX}{cluster.run_id}-*"))


@needs_cgroup
def test_an_orphan_without_session_and_environment_belongs_to_its_replica(run_scenario: RunScenario) -> None:
    async def scenario(cluster: KeeperCluster) -> None:
        (a,) = await cluster.add("gpu-a")
        hidden = "(trap '' TERM; exec setsid env -i /bin/sh -c 'echo $$ >orphan; exec sleep 1000') & "
        first = f"{hidden} while ! test -s orphan; do sleep 0.05; done; exit 1"
        again = "kill -0 $(cat orphan) 2>/dev/null && echo alive; echo again; exec sleep 1000"
        code = shell(f"if test -e count; then {again}; fi; touch count; {first}")
        other = shell("exec sleep 1000")
        await cluster.begin(replica("worker-0", "gpu-a", code), replica("evaluator-0", "gpu-a", other), max_restarts=1)
        await eventually(lambda: "again" in a.output("worker-0"))
        assert "alive" not in a.output("worker-0")
        assert len(groups_of(cluster)) == 1
        await a.call("stop", reason="enough")
        assert (await cluster.end())["state"] == "stopped"
        assert groups_of(cluster) == []

    run_scenario(scenario)


@needs_cgroup
def test_endless_forks_are_ended(run_scenario: RunScenario) -> None:
    async def scenario(cluster: KeeperCluster) -> None:
        (a,) = await cluster.add("gpu-a")
        # Each process leaves a child in a new session and exits immediately, so no single listing contains all
        # processes.
        chain = 'trap \'\' TERM; (setsid /bin/sh -c "$0" "$0") & exit 0'
        await cluster.begin(
            replica("worker-0", "gpu-a", ["/bin/sh", "-c", 'sh -c "$1" "$1" & exec sleep 1000', "x", chain])
        )
        await eventually(lambda: "running" in a.states())
        await a.call("stop", reason="enough", force=True)
        assert (await cluster.end())["state"] == "stopped"

    run_scenario(scenario)


@needs_cgroup
def test_a_killed_keeper_leaves_no_group_behind(tmp_path: Path, run_scenario: RunScenario) -> None:
    from torchyard_agent.keeper.processes import orphans

    async def scenario(cluster: KeeperCluster) -> None:
        (a,) = await cluster.add("gpu-a")
        stray = "setsid env -i /bin/sh -c 'echo $$ >stray; exec sleep 1000' & exec sleep 1000"
        await cluster.begin(replica("worker-0", "gpu-a", shell(stray)))
        file = a.run_dir / "work" / "stray"
        await eventually(lambda: file.exists() and file.read_text())
        a.process.kill()
        a.process.wait()
        orphans.end(str(a.run_dir))
        await eventually(lambda: not Path(f"/proc/{file.read_text().strip()}").exists())
        assert groups_of(cluster) == []

    run_scenario(scenario)


def test_a_login_without_delegation_has_no_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert cgroup.create("run", "host") is None

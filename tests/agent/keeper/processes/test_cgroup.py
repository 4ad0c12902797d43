"""The control group of a run: whose an orphan is, and an end for what forks faster than one can look."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.agent.keeper.conftest import Play
from tests.agent.keeper.keeper_cluster import KeeperCluster, replica, shell
from tests.waiting import eventually
from torchyard_agent.keeper.processes import cgroup

needs_cgroup = pytest.mark.skipif(
    cgroup.create("probe", "probe") is None, reason="this login may not make a cgroup v2 here"
)
cgroup.end_leftovers("probe", "probe")


def groups_of(yard: KeeperCluster) -> list[Path]:
    own = cgroup._own_group()
    assert own is not None
    return list(Path(own).glob(f"{cgroup.PREFIX}{yard.run_id}-*"))


@needs_cgroup
def test_an_orphan_without_session_and_environment_is_still_its_replicas(play: Play) -> None:
    async def story(yard: KeeperCluster) -> None:
        (a,) = await yard.add("gpu-a")
        hidden = "(trap '' TERM; exec setsid env -i /bin/sh -c 'echo $$ >orphan; exec sleep 1000') & "
        first = f"{hidden} while ! test -s orphan; do sleep 0.05; done; exit 1"
        again = "kill -0 $(cat orphan) 2>/dev/null && echo alive; echo again; exec sleep 1000"
        code = shell(f"if test -e count; then {again}; fi; touch count; {first}")
        other = shell("exec sleep 1000")
        await yard.begin(replica("worker-0", "gpu-a", code), replica("evaluator-0", "gpu-a", other), max_restarts=1)
        await eventually(lambda: "again" in a.output("worker-0"))
        assert "alive" not in a.output("worker-0")
        assert len(groups_of(yard)) == 1
        await a.call("stop", reason="enough")
        assert (await yard.end())["state"] == "stopped"
        assert groups_of(yard) == []

    play(story)


@needs_cgroup
def test_what_forks_without_end_is_ended(play: Play) -> None:
    async def story(yard: KeeperCluster) -> None:
        (a,) = await yard.add("gpu-a")
        # Each generation ends at once and leaves a child in a session of its own: no look ever finds them all.
        chain = 'trap \'\' TERM; (setsid /bin/sh -c "$0" "$0") & exit 0'
        await yard.begin(
            replica("worker-0", "gpu-a", ["/bin/sh", "-c", 'sh -c "$1" "$1" & exec sleep 1000', "x", chain])
        )
        await eventually(lambda: "running" in a.states())
        await a.call("stop", reason="enough", force=True)
        assert (await yard.end())["state"] == "stopped"

    play(story)


@needs_cgroup
def test_a_killed_keeper_leaves_no_group_behind(tmp_path: Path, play: Play) -> None:
    from torchyard_agent.keeper.processes import orphans

    async def story(yard: KeeperCluster) -> None:
        (a,) = await yard.add("gpu-a")
        stray = "setsid env -i /bin/sh -c 'echo $$ >stray; exec sleep 1000' & exec sleep 1000"
        await yard.begin(replica("worker-0", "gpu-a", shell(stray)))
        file = a.run_dir / "work" / "stray"
        await eventually(lambda: file.exists() and file.read_text())
        a.process.kill()
        a.process.wait()
        orphans.end(str(a.run_dir))
        await eventually(lambda: not Path(f"/proc/{file.read_text().strip()}").exists())
        assert groups_of(yard) == []

    play(story)


def test_a_login_that_may_not_make_one_goes_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert cgroup.create("run", "host") is None

"""Tests of finding and ending process trees, and of the orphans that a killed keeper leaves behind."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.agent.keeper.conftest import RunScenario
from tests.agent.keeper.keeper_cluster import KeeperCluster, replica, shell
from tests.waiting import eventually
from torchyard_agent.keeper.processes import orphans, process_control
from torchyard_agent.telemetry import process_tree


@pytest.mark.parametrize("kernel", ["as it is", "without CONFIG_PROC_CHILDREN"])
def test_a_tree_is_walked_to_its_leaves(monkeypatch: pytest.MonkeyPatch, kernel: str) -> None:
    if kernel != "as it is":
        monkeypatch.setattr(process_tree, "HAS_CHILDREN_FILES", False)
    code = "import subprocess; print('up', flush=True); subprocess.run(['sh', '-c', 'read line; true'])"
    tree = [sys.executable, "-S", "-c", code]
    with subprocess.Popen(tree, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        parent.stdout.readline()
        below = []
        while not below:
            below = process_control.descendants(parent.pid)
        assert process_tree.children(parent.pid) == below[:1]
        assert parent.pid in process_control.descendants(os.getpid())
        parent.communicate(b"\n")


def test_orphans_of_a_killed_keeper_are_found_and_ended(run_scenario: RunScenario) -> None:
    async def scenario(cluster: KeeperCluster) -> None:
        (a,) = await cluster.add("gpu-a")
        await cluster.begin(replica("worker-0", "gpu-a", shell("setsid sleep 1000 & exec sleep 1000")))
        await eventually(lambda: len(orphans.find(str(a.run_dir))) == 2)
        a.process.kill()
        await eventually(lambda: len(cluster.left()) == 1)
        assert orphans.end(str(a.run_dir)) == []
        assert cluster.left() == []

    run_scenario(scenario)

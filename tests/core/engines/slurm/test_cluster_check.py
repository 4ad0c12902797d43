"""Tests of a cluster's lines in the checklist of a launch."""

from __future__ import annotations

from typing import Any

from torchyard_core.engines.slurm.cluster_check import launch_checks
from torchyard_core.engines.slurm.description import ClusterDescription
from torchyard_core.fleet.cluster import Cluster

HPC = Cluster(name="hpc", kind="slurm")
ANSWER: dict[str, Any] = {
    "version": "22.05.8",
    "nodes": [{"count": 2}],
    "settings": {"KillWait": 5.0, "ProctrackType": "proctrack/linuxproc"},
    "home": {"file_system": "nfs", "shared": True},
    "last_stop": None,
}


def test_a_launch_warns_of_problems_but_for_those_that_only_hosts_check_reports() -> None:
    description = ClusterDescription(ANSWER, "1.0")
    assert [problem.code for problem in description.problems(HPC)] == ["linuxproc", "kill_wait"]
    first, *warnings = launch_checks(description, HPC)
    assert first.message == "Slurm 22.05.8, 2 nodes, agent 1.0"
    assert [("linuxproc" in check.message, check.warning) for check in warnings] == [(True, True)]

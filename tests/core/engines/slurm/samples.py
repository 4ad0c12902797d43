"""A cluster of the fleet file, the answer of its login node to `cluster.describe`, and plans for it."""

from __future__ import annotations

from typing import Any

import yaml

from torchyard_core.engines.slurm.cluster_check import ClusterCheck
from torchyard_core.engines.slurm.description import ClusterDescription
from torchyard_core.engines.slurm.planned_nodes import on_slots, slots_of
from torchyard_core.fleet.cluster import Cluster
from torchyard_core.launch.rank_assignment import Plan, plan
from torchyard_core.topology.file import topology_from_text

CLUSTER = Cluster.model_validate({"name": "hpc", "kind": "slurm", "partition": "gpu", "time_limit": "04:00:00"})
SHAPES: list[dict[str, Any]] = [
    {"count": 4, "cpus": 32, "memory_mb": 256000, "gpus": {"a100": 4}, "states": {"idle": 3, "down": 1}},
    {"count": 10, "cpus": 64, "memory_mb": 512000, "gpus": {}, "states": {"idle": 10}},
]
ANSWER: dict[str, Any] = {
    "version": "22.05.8",
    "cluster": "lab",
    "nodes": SHAPES,
    "partitions": [],
    "settings": {"ProctrackType": "proctrack/cgroup", "KillWait": 30.0},
    "home": {"file_system": "nfs", "shared": True},
    "limits": [],
    "reservations": True,
    "sacct": True,
    "overlap": True,
    "user": "lee",
}
DESCRIPTION = ClusterDescription(ANSWER, "1.0 on Python 3.11 at /usr/bin/python3")


def checked() -> ClusterCheck:
    """Returns the result of a successful check of the cluster."""
    return ClusterCheck("hpc", "gpu", DESCRIPTION, None)


PROGRAM = {"script": "train.py"}


def planned(pools: list[dict[str, Any]], **more: Any) -> Plan:
    pools = [{**pool, "hosts": ["hpc"]} for pool in pools]
    text = yaml.safe_dump({"version": 1, "name": "x", "pools": pools, "program": PROGRAM, **more})
    topology = topology_from_text(text).topology
    assert topology is not None
    slots = slots_of(CLUSTER, SHAPES, sum(pool.replicas for pool in topology.pools))
    found = plan(on_slots(topology, CLUSTER, slots), slots)
    assert found.can_start, found.problems
    return found

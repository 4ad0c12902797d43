"""A cluster of the fleet file, and the answer of its login node to `cluster.describe`."""

from __future__ import annotations

from typing import Any

from torchyard_core.engines.slurm.cluster_check import ClusterCheck
from torchyard_core.engines.slurm.description import ClusterDescription
from torchyard_core.fleet.cluster import Cluster

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

"""The slots of a cluster for the planner, and the request for nodes that a plan leads to. Pure functions.

A slot is the place of a node in a run, such as `hpc.2`. During planning, it stands for any node of a certain shape.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torchyard_core.fleet.cluster import Cluster
from torchyard_core.formatting import counted
from torchyard_core.launch.rank_assignment import Plan, PlannedReplica
from torchyard_core.topology.host_facts import Gpu, HostFacts
from torchyard_core.topology.model import Topology

UNUSABLE = ("down", "drained", "fail", "error", "unknown", "future")
"""States of nodes that currently run no jobs. Nodes in these states are ignored."""


@dataclass(frozen=True)
class Component:
    """The nodes of a job that have the same shape. A job with several components is heterogeneous."""

    slots: tuple[str, ...]
    cpus: int
    memory_mb: int | None
    """Memory of each node in MiB; None for the cluster's default."""
    gpus: tuple[tuple[str, int], ...]
    """The number of GPUs of each type. An empty type stands for any type."""

    @property
    def options(self) -> list[str]:
        """The options for `sbatch` and `srun` that request the component."""
        found = [f"--nodes={len(self.slots)}", f"--cpus-per-task={self.cpus}"]
        if self.memory_mb is not None:
            found.append(f"--mem={self.memory_mb}M")
        if self.gpus:
            types = ",".join(f"{kind}:{count}" if kind else str(count) for kind, count in self.gpus)
            found.append(f"--gpus-per-node={types}")
        return found

    def to_json(self) -> dict[str, Any]:
        return {
            "count": len(self.slots),
            "slots": list(self.slots),
            "cpus": self.cpus,
            "memory_mb": self.memory_mb,
            "gpus": dict(self.gpus),
        }


def slots_of(cluster: Cluster, shapes: Sequence[Mapping[str, Any]], most: int) -> list[HostFacts]:
    """Returns the slots of a cluster as hosts for the planner, at most `most` slots of each shape.

    Args:
        cluster: The cluster.
        shapes: The shapes of nodes, as the agent's `cluster.describe` returns them.
        most: The number of replicas. A run never uses more nodes.
    """
    slots: list[HostFacts] = []
    for shape in shapes:
        lost = sum(count for state, count in shape["states"].items() if state in UNUSABLE)
        for _ in range(min(most, shape["count"] - lost)):
            name = cluster.slot(len(slots) + 1)
            kinds = [kind for kind, count in shape["gpus"].items() for _ in range(count)]
            slots.append(
                HostFacts(
                    name,
                    address=name,
                    cpus=int(shape["cpus"]),
                    memory_gb=int(shape["memory_mb"]) / 1024 or None,
                    gpus=tuple(Gpu(index, f"{name}:{index}", kind, 0) for index, kind in enumerate(kinds)),
                    checked=True,
                    python=cluster.python,
                    cluster=cluster.name,
                )
            )
    return slots


def on_slots(topology: Topology, cluster: Cluster, slots: Sequence[HostFacts]) -> Topology:
    """Returns the topology in which the pools name the slots instead of the cluster."""
    names = tuple(slot.name for slot in slots)
    pools = [
        pool.model_copy(update={"hosts": names}) if pool.hosts and cluster.name in pool.hosts else pool
        for pool in topology.pools
    ]
    return topology.model_copy(update={"pools": tuple(pools)})


def components_of(plan: Plan) -> list[Component]:
    """Returns the components that a plan requests, the primary's first.

    There are several components only if nodes need different GPUs. All nodes of a component get the CPUs and the memory
    of the node that needs most.
    """
    needs = {slot: _need(plan.on_host(slot)) for slot in plan.hosts}
    kinds = list(dict.fromkeys(gpus for _, _, gpus in needs.values()))
    found = []
    for gpus in kinds:
        members = [slot for slot in plan.hosts if needs[slot][2] == gpus]
        memories = [needs[slot][1] for slot in members]
        memory = max((one for one in memories if one is not None), default=None)
        found.append(Component(tuple(members), max(needs[slot][0] for slot in members), memory, gpus))
    return found


def have_room(shapes: Sequence[Mapping[str, Any]], nodes: Collection[str], components: Iterable[Component]) -> bool:
    """Returns whether `nodes` contains a separate, sufficient node for each slot of the components.

    Args:
        shapes: The shapes of nodes, as the agent's `cluster.describe` returns them.
        nodes: The names of nodes.
        components: The components of all jobs of a run.
    """
    left = [shape for shape in shapes for node in shape["names"] if node in nodes]
    left.sort(key=lambda shape: (sum(shape["gpus"].values()), shape["cpus"]))
    wanted = [one for one in components for _ in one.slots]
    wanted.sort(key=lambda one: (sum(count for _, count in one.gpus), one.cpus), reverse=True)
    for component in wanted:
        found = next((shape for shape in left if _has(shape, component)), None)
        if found is None:
            return False
        left.remove(found)
    return True


def _has(shape: Mapping[str, Any], component: Component) -> bool:
    gpus = all((shape["gpus"].get(kind, 0) if kind else sum(shape["gpus"].values())) >= n for kind, n in component.gpus)
    return gpus and int(shape["cpus"]) >= component.cpus and int(shape["memory_mb"]) >= (component.memory_mb or 0)


def request_text(components: Sequence[Component]) -> str:
    """Describes a request for nodes: `2 nodes (--cpus-per-task=4 --gpus-per-node=a100:4)`."""
    return " and ".join(f"{counted(len(one.slots), 'node')} ({' '.join(one.options[1:])})" for one in components)


def _need(replicas: Sequence[PlannedReplica]) -> tuple[int, int | None, tuple[tuple[str, int], ...]]:
    """Returns the CPUs, the memory in MiB, and the GPUs by type that the replicas of one node need together."""
    cpus = sum(one.replica.pool.cpus or one.ranks for one in replicas)
    memories = [one.replica.pool.memory_gb for one in replicas]
    known = [gigabytes for gigabytes in memories if gigabytes is not None]
    # Slurm measures memory in MiB.
    memory = math.ceil(sum(known) * 1e9 / 2**20) if known and len(known) == len(memories) else None
    kinds = [gpu.name for one in replicas for gpu in one.gpus]
    return math.ceil(cpus), memory, tuple((kind, kinds.count(kind)) for kind in dict.fromkeys(kinds))


def without_placeholders(replicas: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns planned replicas for a run's record, with readable names such as `hpc.1:0` in place of placeholders."""
    return [
        {**replica, "gpus": [gpu.removeprefix("@gpu:").removesuffix("@") for gpu in replica["gpus"]]}
        for replica in replicas
    ]


def with_gpu_types(replicas: list[dict[str, Any]], plan: Plan) -> list[dict[str, Any]]:
    """Adds the types of GPUs to the planned replicas of a run's record, because no later check finds them out."""
    types = {planned.name: [gpu.name for gpu in planned.gpus] for planned in plan.replicas}
    return [{**replica, "gpu_types": types[replica["name"]]} for replica in replicas]

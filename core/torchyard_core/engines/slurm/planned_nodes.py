"""The slots of a cluster for the planner, and the request for nodes that follows from a plan. Pure functions.

A slot is the place of a node in a run, such as `hpc.2`. During planning, a slot stands for any node of a given shape.
After planning, the slots in use are renumbered, so that the primary's slot comes first and the slots of each component
are contiguous.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torchyard_core.fleet.cluster import Cluster
from torchyard_core.formatting import counted
from torchyard_core.launch.rank_assignment import Plan, PlannedReplica
from torchyard_core.topology.host_facts import Gpu, HostFacts
from torchyard_core.topology.model import StrategyKind, Topology

UNUSABLE = ("down", "drained", "fail", "error", "unknown", "future")
"""Nodes in these states are ignored, because they currently run no jobs."""


@dataclass(frozen=True)
class Component:
    """Nodes of the same shape in a job. A job with several components is heterogeneous."""

    slots: tuple[str, ...]
    cpus: int
    memory_mb: int | None
    """Memory of each node in MiB; None for the cluster's default."""
    gpus: tuple[tuple[str, int], ...]
    """The number of GPUs of each type; an empty type stands for any."""

    @property
    def options(self) -> list[str]:
        """The options of `sbatch` and `srun` that describe the component."""
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


@dataclass(frozen=True)
class ClusterJob:
    """A job of a run: the first one, with the primary, or that of a worker group."""

    group: str
    """The worker group, such as `group-1`, or "" for the first job."""
    components: tuple[Component, ...]

    @property
    def slots(self) -> tuple[str, ...]:
        return tuple(slot for component in self.components for slot in component.slots)


def has_group_jobs(plan: Plan) -> bool:
    """Returns whether each worker group, except the chief's, has a job of its own.

    The strategy must allow groups to come and go, and the pools of workers must allow the loss of any group
    (`min_replicas`). Hogwild's groups are one job: each of them holds a part of the model that all others need.
    """
    if plan.topology.strategy.kind not in (StrategyKind.DOWNPOUR, StrategyKind.DILOCO) or len(plan.worlds) < 2:
        return False
    for world in plan.worlds[1:]:
        members = [one for one in plan.replicas if one.gang == world.gang]
        for pool in {one.replica.pool.name: one.replica.pool for one in members}.values():
            lost = sum(one.replica.pool.name == pool.name for one in members)
            if pool.min_replicas is None or pool.replicas - lost < pool.min_replicas:
                return False
    return True


def separated(plan: Plan) -> Plan:
    """Returns the plan with slots of their own for each worker group that has a job of its own.

    Slurm may give the nodes of several jobs on one node, but a keeper belongs to one job.
    """
    if not has_group_jobs(plan):
        return plan
    own = {world.gang for world in plan.worlds[1:]}
    replicas = tuple(
        replace(one, host=f"{one.host}/{one.gang}") if one.host is not None and one.gang in own else one
        for one in plan.replicas
    )
    hosts = tuple(dict.fromkeys(one.host for one in replicas if one.host is not None))
    return replace(plan, replicas=replicas, hosts=hosts)


def jobs_of(plan: Plan) -> list[ClusterJob]:
    """Returns the jobs of a plan from `separated`, the one with the primary first."""
    if not has_group_jobs(plan):
        return [ClusterJob("", tuple(components_of(plan)))]
    own = [world.gang for world in plan.worlds[1:]]
    hosts = {gang: tuple(dict.fromkeys(one.host or "" for one in plan.replicas if one.gang == gang)) for gang in own}
    rest = tuple(host for host in plan.hosts if not any(host in theirs for theirs in hosts.values()))
    parts = {"": rest, **hosts}
    return [ClusterJob(group, tuple(components_of(replace(plan, hosts=part)))) for group, part in parts.items()]


def slots_of(cluster: Cluster, shapes: Sequence[Mapping[str, Any]], most: int) -> list[HostFacts]:
    """Returns the slots of a cluster as hosts for the planner, at most `most` of each shape of nodes.

    Args:
        cluster: The cluster.
        shapes: The nodes by shape, as `cluster.describe` of the agent returns them.
        most: The number of replicas, since a run does not use more nodes.
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
    """Returns the topology with the slots in place of the cluster's name in each pool."""
    names = tuple(slot.name for slot in slots)
    pools = [
        pool.model_copy(update={"hosts": names}) if pool.hosts and cluster.name in pool.hosts else pool
        for pool in topology.pools
    ]
    return topology.model_copy(update={"pools": tuple(pools)})


def components_of(plan: Plan) -> list[Component]:
    """Returns the components that a plan requests, with the primary's component first.

    There are several components only if some nodes need GPUs that others do not need. All nodes of a component get the
    resources of its most demanding node.
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


def request_text(components: Sequence[Component]) -> str:
    """Describes a request for nodes: `2 nodes (--cpus-per-task=4 --gpus-per-node=a100:4)`."""
    return " and ".join(f"{counted(len(one.slots), 'node')} ({' '.join(one.options[1:])})" for one in components)


def _need(replicas: Sequence[PlannedReplica]) -> tuple[int, int | None, tuple[tuple[str, int], ...]]:
    """Returns the CPUs, the memory in MiB, and the GPUs by type that the replicas on a node need."""
    cpus = sum(one.replica.pool.cpus or one.ranks for one in replicas)
    memories = [one.replica.pool.memory_gb for one in replicas]
    known = [gigabytes for gigabytes in memories if gigabytes is not None]
    # Slurm measures memory in MiB.
    memory = math.ceil(sum(known) * 1e9 / 2**20) if known and len(known) == len(memories) else None
    kinds = [gpu.name for one in replicas for gpu in one.gpus]
    return math.ceil(cpus), memory, tuple((kind, kinds.count(kind)) for kind in dict.fromkeys(kinds))


def renumbered(plan: Plan, cluster: Cluster) -> Plan:
    """Returns the plan with slots numbered from 1 by job and component, and with placeholders for GPUs.

    The primary's slot is the first. The GPUs of a slot are counted from 0 in the order of its replicas.
    """
    order = [slot for job in jobs_of(plan) for slot in job.slots]
    names = {slot: cluster.slot(number) for number, slot in enumerate(order, 1)}
    used = dict.fromkeys(names.values(), 0)
    replicas = []
    for one in plan.replicas:
        slot = names[one.host or ""]
        gpus = []
        for gpu in one.gpus:
            gpus.append(replace(gpu, index=used[slot], uuid=f"@gpu:{slot}:{used[slot]}@"))
            used[slot] += 1
        replicas.append(replace(one, host=slot, gpus=tuple(gpus)))
    return replace(plan, replicas=tuple(replicas), hosts=tuple(names.values()))


def without_placeholders(replicas: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns planned replicas for a run's record, with readable names of GPUs such as `hpc.1:0`."""
    return [
        {**replica, "gpus": [gpu.removeprefix("@gpu:").removesuffix("@") for gpu in replica["gpus"]]}
        for replica in replicas
    ]


def with_gpu_types(replicas: list[dict[str, Any]], plan: Plan) -> list[dict[str, Any]]:
    """Returns the planned replicas of a run's record with the types of their GPUs, which no later check finds."""
    types = {planned.name: [gpu.name for gpu in planned.gpus] for planned in plan.replicas}
    return [{**replica, "gpu_types": types[replica["name"]]} for replica in replicas]

"""Plans a topology on a cluster before a launch. The functions are pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torchyard_core.engines.slurm.description import ClusterDescription
from torchyard_core.engines.slurm.planned_nodes import Component
from torchyard_core.engines.slurm.worker_group_jobs import jobs_of, separated
from torchyard_core.fleet.cluster import Cluster, cluster_named_by, moved_to_cluster
from torchyard_core.launch.rank_assignment import Plan
from torchyard_core.launch.rank_assignment import plan as make_plan
from torchyard_core.topology.file import TopologyFile
from torchyard_core.topology.host_facts import HostFacts
from torchyard_core.topology.model import Topology


@dataclass(frozen=True)
class PlanOnCluster:
    """A plan on slots that are numbered as in a launch, and the request for nodes that a launch would make."""

    plan: Plan
    slots: tuple[HostFacts, ...]
    components: tuple[Component, ...]

    @classmethod
    def of(cls, source: TopologyFile, cluster: Cluster, description: ClusterDescription) -> PlanOnCluster:
        """Plans the topology of a file on a cluster. Raises NeverStarts if no node can run jobs."""
        assert source.topology is not None
        description.require_nodes(cluster)
        topology, slots = planner_input(source.topology, cluster, description)
        found = replace(source, topology=topology).check(slots)
        planned, used = numbered_slots(make_plan(topology, slots, found=found, line=source.line), cluster, slots)
        return cls(planned, used, tuple(one for job in jobs_of(planned) for one in job.components))


def planner_input(
    topology: Topology, cluster: Cluster, description: ClusterDescription | None, check_failure: str = ""
) -> tuple[Topology, tuple[HostFacts, ...]]:
    """Returns the topology and the slots that a launch on the cluster would give to the planner.

    If the topology does not name the cluster, its labels, pins and hosts are ignored. Without a description, a single
    host of unknown capacity, with the given `check_failure`, stands for the cluster.
    """
    if cluster_named_by(topology, [cluster]) is None:
        topology = moved_to_cluster(topology, cluster.name)
    if description is None:
        name = cluster.name
        unknown = HostFacts(name, name, python=cluster.python, cluster=name, check_failure=check_failure)
        return topology, (unknown,)
    slots, on_slots = description.plan_input(cluster, topology)
    return on_slots, tuple(slots)


def numbered_slots(plan: Plan, cluster: Cluster, slots: Sequence[HostFacts]) -> tuple[Plan, tuple[HostFacts, ...]]:
    """Returns the plan with slots that are numbered as in a launch, and the used slots by number."""
    plan = separated(plan)
    order = [slot for job in jobs_of(plan) for slot in job.slots]
    known = {slot.name: slot for slot in slots}
    if order == [cluster.name]:  # The nodes are unknown, so there are no slots.
        return plan, tuple(slots)
    names = {slot: cluster.slot(number) for number, slot in enumerate(order, 1)}
    replicas = tuple(replace(one, host=names[one.host]) if one.host is not None else one for one in plan.replicas)
    # `separated` has appended `/GROUP` to the names of the slots of a worker group that has its own job.
    used = tuple(replace(known[slot.partition("/")[0]], name=name, address=name) for slot, name in names.items())
    return replace(plan, replicas=replicas, hosts=tuple(names.values())), used

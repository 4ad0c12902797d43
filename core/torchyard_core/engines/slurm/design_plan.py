"""The plan of a topology on a cluster, before a launch. Pure functions of values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torchyard_core.engines.slurm.description import ClusterDescription
from torchyard_core.engines.slurm.planned_nodes import Component, jobs_of, separated
from torchyard_core.fleet.cluster import Cluster, cluster_named_by, moved_to_cluster
from torchyard_core.launch.rank_assignment import Plan
from torchyard_core.launch.rank_assignment import plan as make_plan
from torchyard_core.topology.file import TopologyFile
from torchyard_core.topology.host_facts import HostFacts
from torchyard_core.topology.model import Topology


@dataclass(frozen=True)
class PlanOnCluster:
    """A plan whose hosts are slots, numbered as in a launch, and the request for nodes that follows from it."""

    plan: Plan
    slots: tuple[HostFacts, ...]
    components: tuple[Component, ...]

    @classmethod
    def of(cls, source: TopologyFile, cluster: Cluster, description: ClusterDescription) -> PlanOnCluster:
        """Plans the topology of a file on a cluster. Raises NeverStarts if no node can run jobs."""
        assert source.topology is not None
        description.require_nodes(cluster)
        topology, slots = design_input(source.topology, cluster, description)
        found = replace(source, topology=topology).check(slots)
        planned, used = numbered_slots(make_plan(topology, slots, found=found, line=source.line), cluster, slots)
        return cls(planned, used, tuple(one for job in jobs_of(planned) for one in job.components))


def design_input(
    topology: Topology, cluster: Cluster, description: ClusterDescription | None
) -> tuple[Topology, tuple[HostFacts, ...]]:
    """Returns the topology and the slots for the planner, as a launch of the topology on the cluster would use them.

    If the topology does not name the cluster, its labels, pins and hosts are ignored. Without a description, the
    cluster is a single host of unknown capacity.
    """
    if cluster_named_by(topology, [cluster]) is None:
        topology = moved_to_cluster(topology, cluster.name)
    if description is None:
        return topology, (HostFacts(cluster.name, address=cluster.name, python=cluster.python, cluster=cluster.name),)
    slots, on_slots = description.plan_input(cluster, topology)
    return on_slots, tuple(slots)


def numbered_slots(plan: Plan, cluster: Cluster, slots: Sequence[HostFacts]) -> tuple[Plan, tuple[HostFacts, ...]]:
    """Returns the plan with the slots numbered as in a launch, and the slots that it uses, in this order."""
    plan = separated(plan)
    order = [slot for job in jobs_of(plan) for slot in job.slots]
    known = {slot.name: slot for slot in slots}
    if order == [cluster.name]:  # The shapes of the nodes are not known yet.
        return plan, tuple(slots)
    names = {slot: cluster.slot(number) for number, slot in enumerate(order, 1)}
    replicas = tuple(replace(one, host=names[one.host]) if one.host is not None else one for one in plan.replicas)
    # The slot of a worker group in a job of its own is named after the slot with which it was planned.
    used = tuple(replace(known[slot.partition("/")[0]], name=name, address=name) for slot, name in names.items())
    return replace(plan, replicas=replicas, hosts=tuple(names.values())), used

"""The jobs of a planned run: one job, or a first job and one group job for each further worker group. Pure functions.

Groups with their own jobs start, fail and are preempted independently. After planning, the used slots are renumbered:
the primary's slot comes first, and the slots of each job and component are contiguous.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torchyard_core.engines.slurm.planned_nodes import Component, components_of
from torchyard_core.fleet.cluster import Cluster
from torchyard_core.launch.rank_assignment import Plan
from torchyard_core.topology.model import StrategyKind


@dataclass(frozen=True)
class ClusterJob:
    """A job of a run: the first job, to which the primary belongs, or the group job of a worker group."""

    group: str
    """The worker group, such as `group-1`, or "" for the first job."""
    components: tuple[Component, ...]

    @property
    def slots(self) -> tuple[str, ...]:
        return tuple(slot for component in self.components for slot in component.slots)


def has_group_jobs(plan: Plan) -> bool:
    """Returns whether each worker group except the chief's has its own job.

    This requires a strategy that allows groups to join and leave, and pools of workers that allow the loss of any group
    (`min_replicas`). Under Hogwild, all groups share one job, because each group holds a part of the model that the
    other groups need.
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
    """Returns the plan in which each worker group that has its own job also has its own slots.

    A keeper belongs to one job, but Slurm may place several jobs on one node. Such a node then has several slots.
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
    """Returns the jobs of a plan, the primary's first. `plan` must be a result of `separated`."""
    if not has_group_jobs(plan):
        return [ClusterJob("", tuple(components_of(plan)))]
    own = [world.gang for world in plan.worlds[1:]]
    hosts = {gang: tuple(dict.fromkeys(one.host or "" for one in plan.replicas if one.gang == gang)) for gang in own}
    rest = tuple(host for host in plan.hosts if not any(host in theirs for theirs in hosts.values()))
    parts = {"": rest, **hosts}
    return [ClusterJob(group, tuple(components_of(replace(plan, hosts=part)))) for group, part in parts.items()]


def renumbered(plan: Plan, cluster: Cluster, jobs: Sequence[ClusterJob] | None = None) -> Plan:
    """Returns the plan with slots numbered from 1 in the order of jobs and components, and with placeholders for GPUs.

    `jobs` defaults to the result of `jobs_of`. The first slot is the primary's. The GPUs of a slot are numbered from 0
    in the order of its replicas.
    """
    order = [slot for job in (jobs_of(plan) if jobs is None else jobs) for slot in job.slots]
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

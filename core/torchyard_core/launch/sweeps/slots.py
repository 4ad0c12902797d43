"""Plans the slots of a sweep, each with the hosts and GPUs of one of the concurrent trials. The functions are pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torchyard_agent.protocol.sweep_messages import SweepSlot
from torchyard_core.launch.port_assignment import ports_needed
from torchyard_core.launch.rank_assignment import Plan, PlannedReplica
from torchyard_core.launch.replica_plans import PreparedHost, cluster_plan
from torchyard_core.topology.host_facts import HostFacts
from torchyard_core.topology.machine_types import with_machine_sizes
from torchyard_core.topology.model import Pool, Role
from torchyard_core.topology.placement.capacity import GB_IN_GIB


@dataclass(frozen=True)
class SlotPlans:
    """The plan of a trial for each slot. Slots may share hosts, but not GPUs."""

    slots: tuple[Plan, ...]

    @property
    def whole(self) -> Plan:
        """The plan of all slots together. Its replicas are numbered across all slots.

        It has no worlds, because each trial has only the world of its own slot.
        """
        replicas: list[PlannedReplica] = []
        before: Counter[Role] = Counter()
        for slot in self.slots:
            for planned in slot.replicas:
                moved = replace(planned.replica, index=planned.replica.index + before[planned.role])
                replicas.append(replace(planned, replica=moved))
            before.update(planned.role for planned in slot.replicas)
        first = self.slots[0]
        hosts = tuple(dict.fromkeys(host for slot in self.slots for host in slot.hosts))
        return replace(first, replicas=tuple(replicas), worlds=(), hosts=hosts)

    def ports(self) -> dict[str, int]:
        """Returns the number of ports to reserve on each host for all slots."""
        needed: Counter[str] = Counter()
        for slot in self.slots:
            needed.update(ports_needed(slot))
        return {host: needed[host] for host in self.whole.hosts}

    def described(
        self, sites: Mapping[str, PreparedHost], run_token: str, prepare: Callable[[Plan, str], dict[str, Any]]
    ) -> list[SweepSlot]:
        """Returns the slots in the form in which they are sent to the primary.

        Args:
            sites: The hosts with the ports of all slots.
            run_token: The placeholder for the run ID of a trial. The run folders in `sites` contain it, too.
            prepare: Returns the parameters of `run.prepare` for one host of a slot.
        """
        left = {host: list(site.ports) for host, site in sites.items()}
        found = []
        for slot in self.slots:
            own = {}
            for host, count in ports_needed(slot).items():
                own[host] = replace(sites[host], ports=tuple(left[host][:count]))
                del left[host][:count]
            cluster, replicas = cluster_plan(slot, own, run_token)
            preparing = {host: prepare(slot, host) for host in slot.hosts}
            found.append(SweepSlot(hosts=list(slot.hosts), cluster=cluster, replicas=list(replicas), prepare=preparing))
        return found


def plan_slots(plan_on: Callable[[Sequence[HostFacts]], Plan], hosts: Sequence[HostFacts], parallel: int) -> SlotPlans:
    """Plans up to `parallel` slots, each on the resources that the slots before it leave free.

    If a trial cannot start in the first slot, this is the only slot, and its plan contains the problems.

    Args:
        plan_on: Plans one trial on the given hosts.
        hosts: The hosts of the fleet.
        parallel: The maximum number of slots.
    """
    slots = [plan_on(hosts)]
    while slots[-1].can_start and len(slots) < parallel:
        hosts = _without(hosts, slots[-1])
        slot = plan_on(hosts)
        if not slot.can_start:
            break
        slots.append(slot)
    return SlotPlans(tuple(slots))


def _without(hosts: Sequence[HostFacts], slot: Plan) -> list[HostFacts]:
    """Returns the hosts without the GPUs, CPUs and memory of `slot`. Hosts that the slot does not use come first."""
    topology = with_machine_sizes(slot.topology)
    left = []
    for host in hosts:
        here = slot.on_host(host.name)
        pools: list[Pool] = [topology.pools[planned.replica.pool_index] for planned in here]
        cpus = sum(pool.cpus or 0 for pool in pools)
        memory_gb = sum(pool.memory_gb or 0 for pool in pools) * GB_IN_GIB
        left.append(
            replace(
                host,
                busy_gpus=host.busy_gpus | {gpu.uuid for planned in here for gpu in planned.gpus},
                cpus=None if host.cpus is None else int(max(0, host.cpus - cpus)),
                memory_gb=None if host.memory_gb is None else max(0.0, host.memory_gb - memory_gb),
            )
        )
    return sorted(left, key=lambda host: host.name in slot.hosts)

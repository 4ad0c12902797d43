"""Computes the contents of racks from a plan and the known hosts. A rack is repainted only if its content changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from torchyard_core.gpu_names import model_with_memory
from torchyard_core.launch.rank_assignment import Plan, PlannedReplica
from torchyard_core.topology.host_facts import Gpu, HostFacts
from torchyard_core.topology.placement.pin_syntax import parse_pin
from torchyard_core.topology.strategies.replica_groups import ReplicaGroup
from torchyard_core.topology.strategies.traffic import Group
from torchyard_gui.canvas.racks.layout import RackLayout, group_columns, lay_group, lay_rack
from torchyard_gui.canvas.racks.sections import sections_of
from torchyard_gui.widgets.next_steps import quoted

TRAY = ""
"""The key of the tray in dictionaries of racks. No host can have this name."""


@dataclass(frozen=True, slots=True)
class ChipContent:
    """The content of a chip, which represents one replica."""

    name: str
    role: str
    index: int
    host: str
    gpus: tuple[int, ...]
    wanted: int
    """The number of GPUs that each replica of the pool requests."""
    pinned: bool
    trains: bool
    group: int | None = None
    """Number of the replica's worker or server group; None if the replica is not placed or belongs to no group."""
    by_group: bool = False
    """Whether the chip is in the frame of its group. If so, the chip shows the host of the replica."""


@dataclass(frozen=True)
class RackContent:
    """The content of a rack, which is a host, the tray of unplaced replicas, or the frame of a group."""

    key: str
    layout: RackLayout
    chips: tuple[ChipContent, ...]
    gpus: tuple[tuple[str, int], ...] = ()
    """For each GPU model, its short name with the memory, and the number of GPUs."""
    busy: frozenset[int] = frozenset()
    """Indices of the GPUs that are in use."""
    users: Mapping[int, str] = field(default_factory=dict)
    """The known users of GPUs that are in use, by GPU index."""
    use_known: bool = True
    """Whether the current use of the host's GPUs is known."""
    cpus: int | None = None
    memory_gb: float | None = None
    checked: bool = False
    unchecked_reason: str = ""
    """Why the host counts as unchecked, such as `has not been checked`; "" if it has been checked."""
    reasons: tuple[str, ...] = ()
    """For the tray: the reasons why its replicas cannot be placed."""
    section: str = ""
    """Name of the section that contains the rack, such as the value of the host's label `rack`; "" if there are no
    sections.
    """
    group: ReplicaGroup | None = None
    """The group that the frame represents; None for hosts and the tray."""
    cluster: str = ""
    """The cluster that chooses the node; "" for a host of the fleet file."""
    node: str = ""
    """The node that the cluster has chosen; "" before the choice."""

    @property
    def is_tray(self) -> bool:
        return self.key == TRAY

    @property
    def trains(self) -> bool:
        return any(chip.trains for chip in self.chips)

    @property
    def used(self) -> int:
        return sum(len(chip.gpus) for chip in self.chips)


def racks_of(
    plan: Plan, hosts: Sequence[HostFacts], also: Collection[str] = (), groups: Sequence[Group] = ()
) -> tuple[RackContent, ...]:
    """Returns the rack contents for hosts with placed or pinned replicas and for the hosts in `also`.

    The racks are in the order of the fleet, so that moving a chip does not move racks.

    Args:
        groups: The worker and server groups, from the result of `traffic_of`.
    """
    group_of = {name: group.number for group in groups for name in group.members}
    on_host: dict[str, list[PlannedReplica]] = {}
    for planned in plan.replicas:
        if planned.host is not None:
            on_host.setdefault(planned.host, []).append(planned)
    names = {*on_host, *_pinned_hosts(plan), *also}
    shown = [host for host in hosts if host.name in names]
    sections = sections_of(shown)
    return tuple(_rack(host, on_host.get(host.name, ()), plan, group_of, sections.get(host.name, "")) for host in shown)


def frames_of(plan: Plan, groups: Sequence[ReplicaGroup]) -> tuple[RackContent, ...]:
    """Returns the contents of the group frames. All frames are equally wide."""
    across = group_columns(max((len(group.members) for group in groups), default=1))
    planned = {replica.name: replica for replica in plan.replicas}
    frames = []
    for group in groups:
        members = [planned[name] for name in group.members if name in planned]
        chips = tuple(replace(_chip(member, plan, group.number), by_group=True) for member in members)
        layout = lay_group([chip.name for chip in chips], across)
        frames.append(RackContent(group.key, layout, chips, group=group))
    return tuple(frames)


def unplaced(plan: Plan) -> tuple[tuple[ChipContent, ...], tuple[str, ...]]:
    """Returns the replicas that could not be placed, and the reasons."""
    chips = tuple(_chip(planned, plan) for planned in plan.replicas if planned.host is None)
    if not chips:
        return (), ()
    errors = [problem for problem in plan.problems if problem.severity == "error"]
    reasons = [problem.message for problem in errors if problem.code == "no-room"] or [p.message for p in errors]
    return chips, tuple(dict.fromkeys(map(quoted, reasons)))


def _pinned_hosts(plan: Plan) -> set[str]:
    found = set()
    for text in plan.topology.pins.values():
        try:
            found.add(parse_pin(text).host)
        except ValueError:
            continue  # Invalid pins are skipped here, because the plan reports them as problems.
    return found


def _rack(
    host: HostFacts,
    members: Sequence[PlannedReplica],
    plan: Plan,
    group_of: Mapping[str, int],
    section: str = "",
) -> RackContent:
    chips = tuple(_chip(planned, plan, group_of.get(planned.name)) for planned in members)
    known = {gpu.index for gpu in host.gpus}
    # If a host has never been checked, it is shown with the GPUs that the plan assumes.
    indices = sorted(known | {gpu for chip in chips for gpu in chip.gpus})
    layout = lay_rack(
        indices, [(chip.name, chip.gpus) for chip in chips if chip.gpus], [chip.name for chip in chips if not chip.gpus]
    )
    return RackContent(
        host.name,
        layout,
        chips,
        gpu_summary(host.gpus),
        frozenset(gpu.index for gpu in host.gpus if gpu.uuid in host.busy_gpus),
        {gpu.index: user for gpu in host.gpus if (user := host.user_of(gpu))},
        host.use_known,
        host.cpus,
        host.memory_gb,
        host.checked,
        "" if host.checked else host.unchecked_reason,
        section=section,
        cluster=host.cluster,
        node=host.node,
    )


def _chip(planned: PlannedReplica, plan: Plan, group: int | None = None) -> ChipContent:
    return ChipContent(
        planned.name,
        planned.role.value,
        planned.index,
        planned.host or "",
        tuple(sorted(gpu.index for gpu in planned.gpus)),
        planned.replica.pool.gpus,
        planned.name in plan.topology.pins,
        planned.trains,
        group,
    )


def gpu_summary(gpus: Sequence[Gpu]) -> tuple[tuple[str, int], ...]:
    """Returns the models of GPUs as (model, count), the most frequent first, such as ("H100 80 GB", 8)."""
    return tuple(Counter(model_with_memory(gpu.name, gpu.memory_mb) for gpu in gpus).most_common())

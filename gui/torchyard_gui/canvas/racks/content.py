"""Contents of the racks, computed from a plan and the known hosts. Equal values mean that nothing changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from torchyard_core.launch.rank_assignment import Plan, PlannedReplica
from torchyard_core.topology.host_facts import Gpu, HostFacts
from torchyard_core.topology.placement.pin_syntax import parse_pin
from torchyard_core.topology.strategies.traffic import Group
from torchyard_gui.canvas.racks.layout import RackLayout, lay_rack
from torchyard_gui.widgets.next_steps import quoted

TRAY = ""
"""Key of the tray among the racks; no host has an empty name."""


@dataclass(frozen=True, slots=True)
class ChipContent:
    """Content of a chip: one replica."""

    name: str
    role: str
    index: int
    host: str
    gpus: tuple[int, ...]
    wanted: int
    """GPUs that its pool requests."""
    pinned: bool
    trains: bool
    group: int | None = None
    """Its worker or server group, or None if there is only one."""


@dataclass(frozen=True)
class RackContent:
    """Content of a rack: one host, or the tray of replicas without a place."""

    key: str
    layout: RackLayout
    chips: tuple[ChipContent, ...]
    gpus: tuple[tuple[str, int], ...] = ()
    """(short model name with memory, count)."""
    busy: frozenset[int] = frozenset()
    """GPUs in use."""
    users: Mapping[int, str] = field(default_factory=dict)
    """Their users, where known."""
    use_known: bool = True
    """Whether the current use of the host is known."""
    cpus: int | None = None
    memory_gb: float | None = None
    checked: bool = False
    reasons: tuple[str, ...] = ()
    """For the tray: why its replicas cannot be placed."""

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
    """Returns the contents of all racks: hosts with placed or pinned replicas, and the hosts in `also`.

    The racks have the order of the fleet, so that moving a chip does not move racks.

    Args:
        groups: Groups of the strategy, as returned by `traffic_of`.
    """
    group_of = {name: group.number for group in groups for name in group.members}
    on_host: dict[str, list[PlannedReplica]] = {}
    for planned in plan.replicas:
        if planned.host is not None:
            on_host.setdefault(planned.host, []).append(planned)
    shown = {*on_host, *_pinned_hosts(plan), *also}
    return tuple(_rack(host, on_host.get(host.name, ()), plan, group_of) for host in hosts if host.name in shown)


def unplaced(plan: Plan) -> tuple[tuple[ChipContent, ...], tuple[str, ...]]:
    """Returns the replicas that have no place, and the reasons."""
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
            continue  # Invalid pins are reported among the problems of the plan.
    return found


def _rack(host: HostFacts, members: Sequence[PlannedReplica], plan: Plan, group_of: Mapping[str, int]) -> RackContent:
    chips = tuple(_chip(planned, plan, group_of.get(planned.name)) for planned in members)
    known = {gpu.index for gpu in host.gpus}
    # A host that was never checked is shown with the GPUs that the plan assumes.
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


FORMS = ("HBM", "PCI", "SXM")
"""Prefixes of words that name a GPU's memory or form factor."""


def gpu_summary(gpus: Sequence[Gpu]) -> tuple[tuple[str, int], ...]:
    """Returns the models of GPUs as (model, count), the most frequent first, such as ("H100 80 GB", 8)."""
    return tuple(Counter(f"{short_model(gpu.name)} {round(gpu.memory_mb / 1024)} GB" for gpu in gpus).most_common())


def short_model(name: str) -> str:
    """Returns the short name of a GPU model, such as "H100" for "NVIDIA H100 80GB HBM3"."""
    words = [word for word in name.split() if word.lower() not in ("nvidia", "geforce", "tesla", "graphics", "gpu")]
    plain = [word for word in words if not word.upper().endswith("GB") and word[:3].upper() not in FORMS]
    kept = plain or words
    return " ".join(word.split("-")[0] if word[:1].isalpha() and "-" in word else word for word in kept) or name

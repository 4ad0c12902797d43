"""Placement by hand: pins for replicas dropped on a host or GPU, and reasons to refuse a drop.

The *target* of a gesture is `gpu-b` (a host), `gpu-b:2` (the first of the GPUs for the replicas), or empty, which
leaves the choice to the planner.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torchyard_core.errors import UsageError
from torchyard_core.formatting import counted
from torchyard_core.topology.document.edits import add_replicas, set_pins
from torchyard_core.topology.host_facts import HostFacts
from torchyard_core.topology.model import MAX_GPUS, Role, Topology
from torchyard_core.topology.placement.pin_syntax import parse_pin
from torchyard_core.topology.placement.planner import Placement, place
from torchyard_core.topology.replicas import Replica, replicas_of


def pins_for(
    topology: Topology, hosts: Sequence[HostFacts], names: Sequence[str], target: str
) -> dict[str, str | None]:
    """Returns the pins of replicas that the user drags onto a target. Raises UsageError if the drop is refused.

    If the target is a GPU, the replicas get GPUs from its index on, in order, except GPUs that are in use or to which
    other replicas are pinned. Replicas without GPUs, and replicas dragged onto a host, are pinned to the host.
    """
    if not target:
        return dict.fromkeys(names)
    replicas = {replica.name: replica for replica in replicas_of(topology)}
    chosen = [replicas[name] for name in names if name in replicas]
    choice = parse_pin(target)
    host = next((host for host in hosts if host.name == choice.host), None)
    if host is None:
        raise UsageError(f"the fleet has no host {choice.host}", code="unknown-host")
    if not choice.indices:
        return {replica.name: host.name for replica in chosen}
    slots = _Slots(topology, host, names)
    pins: dict[str, str | None] = {}
    first = choice.indices[0]
    for replica in chosen:
        if not replica.pool.gpus:
            pins[replica.name] = host.name
            continue
        taken = slots.take(replica, first, exactly=not pins)
        pins[replica.name] = f"{host.name}:{_written(taken)}"
        first = taken[-1] + 1
    return pins


class _Slots:
    """The free GPUs of a host while pins are assigned."""

    def __init__(self, topology: Topology, host: HostFacts, names: Sequence[str]):
        self._host = host
        self._holders: dict[int, str] = {
            gpu.index: why for gpu in host.gpus if (why := host.why_taken(gpu)) is not None
        }
        for name, text in topology.pins.items():
            if name not in names:
                self._pinned(name, text)
        last = max((gpu.index for gpu in host.gpus), default=-1) if host.checked else MAX_GPUS - 1
        self._end = last + 1

    def _pinned(self, name: str, text: str) -> None:
        try:
            choice = parse_pin(text)
        except ValueError:
            return  # The checks report the invalid pin.
        if choice.host == self._host.name:
            self._holders.update(dict.fromkeys(choice.indices or (), f"taken by {name}"))

    def take(self, replica: Replica, first: int, *, exactly: bool) -> list[int]:
        """Returns GPUs for a replica from index `first` on, or exactly at `first` with `exactly`. Raises UsageError."""
        wanted = replica.pool.gpus
        if not self._end:
            raise UsageError(f"{self._host.name} has no GPU, and {replica.name} takes {counted(wanted, 'GPU')}")
        if exactly:
            # Near the last GPU, a replica with several GPUs begins at a lower index.
            first = max(0, min(first, self._end - wanted))
            if first in self._holders:
                raise UsageError(f"{self._host.name}:{first} is {self._holders[first]}", code="pin-clash")
        free = [index for index in range(first, min(self._end, first + MAX_GPUS)) if index not in self._holders]
        if len(free) < wanted:
            raise UsageError(
                f"{replica.name} takes {counted(wanted, 'GPU')}; from {self._host.name}:{first} on "
                f"{'none is' if not free else f'only {len(free)} are' if len(free) > 1 else 'only 1 is'} free",
                code="no-room",
            )
        taken = free[:wanted]
        self._holders.update(dict.fromkeys(taken, f"taken by {replica.name}"))
        return taken


def _written(indices: Sequence[int]) -> str:
    """Formats GPU indices as `2`, `0-3` or `0,2`."""
    if len(indices) > 1 and indices[-1] - indices[0] == len(indices) - 1:
        return f"{indices[0]}-{indices[-1]}"
    return ",".join(map(str, indices))


def drop_refusal(topology: Topology, hosts: Sequence[HostFacts], names: Sequence[str], target: str) -> str:
    """Returns the reason why replicas cannot be dropped on a target; empty if they can.

    A drop is also refused if another replica would lose its place.
    """
    try:
        pins = pins_for(topology, hosts, names, target)
    except (UsageError, ValueError) as problem:
        return str(problem)
    return _what_breaks(place(topology, hosts), place(set_pins(topology, pins), hosts), pins)


def new_replica_refusal(
    topology: Topology, hosts: Sequence[HostFacts], role: Role, target: str, *, gpus: int = 0
) -> str:
    """Returns the reason why a new replica of the role cannot be added on a target; empty if it can."""
    try:
        grown, names = add_replicas(topology, role, gpus=gpus)
    except UsageError as problem:
        return str(problem)
    return drop_refusal(grown, hosts, names, target) if target else ""


def _what_breaks(before: Placement, after: Placement, pins: Mapping[str, str | None]) -> str:
    for problem in after.problems:
        # Pins are placed first. For a pin that fails, only the message about that pin is relevant.
        if problem.severity == "error" and problem.path.removeprefix("pins.") in pins:
            return problem.message
    lost = before.slots.keys() - after.slots.keys()
    if not lost:
        return ""
    known = {problem.message for problem in before.problems}
    reasons = [p.message for p in after.problems if p.severity == "error" and p.message not in known]
    first = min(lost)
    return f"{first} would lose its place: {reasons[0]}" if reasons else f"{first} would lose its place"

"""Manual placement: computes pins for replicas that the user drops on a host or GPU, or refuses the drop.

The *target* of a drop is a host (`gpu-b`), the first GPU to use (`gpu-b:2`), or empty, which leaves the placement to
the planner.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from torchyard_core.errors import UsageError
from torchyard_core.formatting import counted
from torchyard_core.topology.document.edits import add_replicas, set_pins
from torchyard_core.topology.host_facts import Gpu, HostFacts
from torchyard_core.topology.model import MAX_GPUS, Pool, Role, Topology
from torchyard_core.topology.placement.capacity import suits
from torchyard_core.topology.placement.pin_syntax import parse_pin
from torchyard_core.topology.placement.planner import Placement, Slot, homes_of, place
from torchyard_core.topology.replicas import Replica, replicas_of


def pins_for(
    topology: Topology, hosts: Sequence[HostFacts], names: Sequence[str], target: str
) -> dict[str, str | None]:
    """Returns the pins of replicas that the user drags onto a target. Raises UsageError if the drop is refused.

    If the target is a GPU, the replicas are pinned to consecutive GPUs from that GPU on, skipping GPUs that are in use
    or to which other replicas are pinned. The first dragged replica with GPUs may take GPUs of other replicas. These
    replicas get the GPUs that it leaves, if all of them fit there: they swap GPUs with it. A swapped replica is pinned
    to its new GPUs only if it had a pin before, or if the planner would place it elsewhere. Replicas without GPUs, and
    replicas dragged onto a host, are pinned to the host. An empty target removes the pins.
    """
    return _Drop(topology, hosts, names, target).pins


class _Drop:
    """A drop of replicas on a host: the resulting pins, and the placement before and after the drop.

    The constructor and the methods raise UsageError with the reason if the drop is not possible.
    """

    def __init__(self, topology: Topology, hosts: Sequence[HostFacts], names: Sequence[str], target: str):
        self._topology = topology
        self._hosts = hosts
        self._homes = homes_of(topology, hosts)
        self.before = place(topology, hosts, homes=self._homes)
        self._swap = _Swap(topology, hosts, self.before.slots, set(names))
        self.pins = self._pins_of_dragged(names, target)
        self.pins |= self._swap.pinned
        self.after = self._placed(self.pins)
        if missing := self._swap.missing(self.after.slots):
            self.pins |= missing
            self.after = self._placed(self.pins)

    def _placed(self, pins: Mapping[str, str | None]) -> Placement:
        return place(set_pins(self._topology, pins), self._hosts, homes=self._homes)

    def _pins_of_dragged(self, names: Sequence[str], target: str) -> dict[str, str | None]:
        if not target:
            return dict.fromkeys(names)
        replicas = {replica.name: replica for replica in replicas_of(self._topology)}
        chosen = [replicas[name] for name in names if name in replicas]
        choice = parse_pin(target)
        host = next((host for host in self._hosts if host.name == choice.host), None)
        if host is None:
            raise UsageError(f"the fleet has no host {choice.host}", code="unknown-host")
        if not choice.indices:
            return {replica.name: host.name for replica in chosen}
        slots = _Slots(self._topology, host, names)
        pins: dict[str, str | None] = {}
        first, exactly = choice.indices[0], True
        for replica in chosen:
            if not replica.pool.gpus:
                pins[replica.name] = host.name
                continue
            if exactly:
                slots.free(self._swap.partners(replica, host.name, slots.wanted(replica, first)))
            taken = slots.take(replica, first, exactly=exactly)
            pins[replica.name] = f"{host.name}:{_written(taken)}"
            first, exactly = taken[-1] + 1, False
        return pins


class _Swap:
    """The swap of a dragged replica with the replicas whose GPUs it takes: they get the GPUs that it leaves."""

    def __init__(self, topology: Topology, hosts: Sequence[HostFacts], placed: Mapping[str, Slot], dragged: set[str]):
        self._topology = topology
        self._hosts = hosts
        self._placed = placed
        self._dragged = dragged
        self._left: dict[str, str] = {}
        """The pin of each swapped replica to its new GPUs."""

    def partners(self, replica: Replica, host: str, taken: Sequence[int]) -> Collection[str]:
        """Returns the replicas with which `replica` swaps GPUs, because it takes their GPUs.

        Returns none if not all of them fit on the GPUs that `replica` leaves.
        """
        old = self._placed.get(replica.name)
        if old is None:
            return ()
        left = [gpu for gpu in old.gpus if old.host != host or gpu.index not in taken]
        for other in replicas_of(self._topology):
            slot = self._placed.get(other.name)
            if slot is None or other.name in self._dragged or slot.host != host:
                continue
            if not {gpu.index for gpu in slot.gpus}.intersection(taken):
                continue
            share, left = left[: len(slot.gpus)], left[len(slot.gpus) :]
            if len(share) < len(slot.gpus) or not self._suit(old.host, share, other.pool):
                self._left.clear()
                return ()
            self._left[other.name] = f"{old.host}:{_written([gpu.index for gpu in share])}"
        return self._left

    def _suit(self, host: str, gpus: Sequence[Gpu], pool: Pool) -> bool:
        labels = next(one.labels for one in self._hosts if one.name == host)
        if any(labels.get(key) != value for key, value in pool.labels.items()):
            return False
        return (not pool.hosts or host in pool.hosts) and all(suits(gpu, pool) for gpu in gpus)

    @property
    def pinned(self) -> dict[str, str]:
        """The new pins of the swapped replicas that had a pin before."""
        return {name: pin for name, pin in self._left.items() if name in self._topology.pins}

    def missing(self, after: Mapping[str, Slot]) -> dict[str, str]:
        """Returns pins for the swapped replicas that the planner would not place on their new GPUs."""
        return {
            name: pin
            for name, pin in self._left.items()
            if (slot := after.get(name)) is None or pin != f"{slot.host}:{_written([gpu.index for gpu in slot.gpus])}"
        }


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
            return  # The checks of the topology report this invalid pin.
        if choice.host == self._host.name:
            self._holders.update(dict.fromkeys(choice.indices or (), f"taken by {name}"))

    def wanted(self, replica: Replica, first: int) -> list[int]:
        """Returns the indices of the GPUs that a replica would occupy if it were dropped on index `first`."""
        # Near the last GPU of the host, a replica with several GPUs has to begin at a lower index.
        first = max(0, min(first, self._end - replica.pool.gpus))
        return list(range(first, first + replica.pool.gpus))

    def free(self, names: Collection[str]) -> None:
        """Frees the GPUs to which the given replicas are pinned."""
        gone = {f"taken by {name}" for name in names}
        self._holders = {index: why for index, why in self._holders.items() if why not in gone}

    def take(self, replica: Replica, first: int, *, exactly: bool) -> list[int]:
        """Reserves free GPUs for a replica from index `first` on, and returns their indices.

        With `exactly`, the first GPU of the replica must be free. Raises UsageError if there are not enough free GPUs.
        """
        wanted = replica.pool.gpus
        if not self._end:
            raise UsageError(f"{self._host.name} has no GPU, and {replica.name} takes {counted(wanted, 'GPU')}")
        if exactly:
            first = self.wanted(replica, first)[0]
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

    A drop is also refused if another replica would no longer fit on any host.
    """
    try:
        drop = _Drop(topology, hosts, names, target)
    except (UsageError, ValueError) as problem:
        return str(problem)
    return _what_breaks(drop.before, drop.after, drop.pins)


def new_replica_refusal(
    topology: Topology, hosts: Sequence[HostFacts], role: Role, target: str, *, gpus: int = 0
) -> str:
    """Returns the reason why a new replica of the role cannot be added to a target; empty if it can."""
    try:
        grown, names = add_replicas(topology, role, gpus=gpus)
    except UsageError as problem:
        return str(problem)
    return drop_refusal(grown, hosts, names, target) if target else ""


def _what_breaks(before: Placement, after: Placement, pins: Mapping[str, str | None]) -> str:
    for problem in after.problems:
        # Pins are placed first. If a replica's pin fails, only the message about that pin is relevant.
        if problem.severity == "error" and problem.path.removeprefix("pins.") in pins:
            return problem.message
    lost = before.slots.keys() - after.slots.keys()
    if not lost:
        return ""
    known = {problem.message for problem in before.problems}
    reasons = [p.message for p in after.problems if p.severity == "error" and p.message not in known]
    first = min(lost)
    return f"{first} would lose its place: {reasons[0]}" if reasons else f"{first} would lose its place"

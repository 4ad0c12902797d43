"""Edits that move replicas to another worker or server group.

Such a move changes the number of groups or the order of replicas. Groups are contiguous blocks of the replicas in their
order, so the number of groups determines their sizes. A replica therefore joins a group by exchanging places with a
member of the group: each of the two is pinned to the other's host or GPUs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torchyard_core.errors import UsageError
from torchyard_core.formatting import counted
from torchyard_core.topology.document.edits import set_pins, set_strategy
from torchyard_core.topology.model import Launcher, Role, Topology
from torchyard_core.topology.replicas import replicas_of
from torchyard_core.topology.strategies.registry import spec_of
from torchyard_core.topology.strategies.replica_groups import GroupKind, ReplicaGroup, replica_groups

_SETTINGS = {GroupKind.TRAINERS: "worker_groups", GroupKind.SERVERS: "server_groups"}
"""The key of the strategy that sets the number of groups of each kind."""
_NAMES = {
    GroupKind.TRAINERS: "worker group",
    GroupKind.SERVERS: "server group",
    GroupKind.REDUCERS: "group of reducers",
    GroupKind.EVALUATORS: "group of evaluators",
}


@dataclass(frozen=True)
class Regrouping:
    """The effect of moving replicas to another group."""

    sizes: tuple[int, ...] = ()
    """Sizes of the groups; empty if the number of groups does not change."""
    exchanges: tuple[tuple[str, str], ...] = ()
    """Pairs of a moved replica and the replica with which it exchanges places."""
    after: Topology | None = None
    """The topology with the new number of groups, before the exchanges; None if nothing changes."""


def regrouping(topology: Topology, names: Sequence[str], target: str) -> Regrouping:
    """Returns the effect of moving replicas to a group.

    Args:
        target: `trainers:1` for a group, `trainers:1/worker-5` for an exchange with a member of that group, and "" for
            a new group.

    Raises:
        UsageError: The move is not possible. The message states the reason.
    """
    groups = replica_groups(topology)
    key, _, member = target.partition("/")
    wanted = set(names)
    sources = [group for group in groups if wanted.intersection(group.members)]
    kinds = {group.kind for group in sources}
    if len(kinds) != 1:
        raise UsageError("trainers, servers and evaluators have groups of their own: move one kind at a time")
    kind = kinds.pop()
    if not key:
        return _new_group(topology, kind, groups, names)
    into = next((group for group in groups if group.key == key), None)
    if into is None or into.kind is not kind:
        raise UsageError(f"{names[0]} cannot join these replicas: they have another role")
    others = [group for group in sources if group.key != key]
    whole = [group for group in others if wanted.issuperset(group.members)]
    if whole and len(whole) == len(others):
        return _counted(topology, kind, len([group for group in groups if group.kind is kind]) - len(whole))
    if not others:
        return _within(topology, into, names, member)
    joining = [name for name in names if name not in into.members]
    backwards = groups.index(into) < groups.index(others[0])
    return Regrouping((), _partners(topology, joining, into, wanted, member, backwards=backwards), topology)


def next_group(topology: Topology, names: Sequence[str]) -> str | None:
    """Returns the key of the group that follows the group of `names[0]`, or None if there is no other group.

    The first group follows the last one.
    """
    groups = replica_groups(topology)
    own = next((group for group in groups if names and names[0] in group.members), None)
    alike = [group for group in groups if own is not None and group.kind is own.kind]
    if own is None or len(alike) < 2:
        return None
    return alike[(alike.index(own) + 1) % len(alike)].key


def regrouped(topology: Topology, change: Regrouping, places: Mapping[str, str]) -> Topology:
    """Returns the topology after a move between groups.

    Args:
        places: The current host and GPUs of each placed replica, in the syntax of a pin.

    Raises:
        UsageError: Neither replica of an exchange is placed.
    """
    after = change.after if change.after is not None else topology
    pins: dict[str, str | None] = {}
    for one, other in change.exchanges:
        pins[one], pins[other] = (topology.pins.get(name) or places.get(name) for name in (other, one))
        if pins[one] is None and pins[other] is None:
            raise UsageError(f"{one} and {other} have no place yet, so that an exchange would change nothing")
    return set_pins(after, pins) if pins else after


def _within(topology: Topology, group: ReplicaGroup, names: Sequence[str], member: str) -> Regrouping:
    """Returns the exchange of a single replica with `member`, another replica of the same group.

    If there are several replicas, or `member` is not another replica, nothing changes.
    """
    if len(names) != 1 or not member or member in names:
        return Regrouping()
    return Regrouping((), _partners(topology, names, group, set(names), member, backwards=False), topology)


def _partners(
    topology: Topology,
    joining: Sequence[str],
    into: ReplicaGroup,
    moved: set[str],
    member: str = "",
    *,
    backwards: bool,
) -> tuple[tuple[str, str], ...]:
    """Returns pairs of a joining replica and the member of the group with which the replica exchanges places.

    `member` is chosen first, then the members closest to the group of the joining replicas. Raises UsageError if no
    member fits.
    """
    pools = {replica.name: replica.pool.name for replica in replicas_of(topology)}
    order = [name for name in (reversed(into.members) if backwards else into.members) if name not in moved]
    order = [*(name for name in order if name == member), *(name for name in order if name != member)]
    found: list[tuple[str, str]] = []
    for name in joining:
        if _is_chief(name):
            raise UsageError("the chief always trains in the first worker group")
        fits = (other for other in order if not _is_chief(other) and pools[other] == pools[name])
        other = next(fits, None)
        if other is None or (member and name == joining[0] and other != member and member not in moved):
            pool = pools[name]
            raise UsageError(f"{name} can only change places with a replica of its pool `{pool}`, and finds none here")
        order.remove(other)
        found.append((name, other))
    return tuple(found)


def _is_chief(name: str) -> bool:
    return name.startswith(f"{Role.CHIEF}-")


def _new_group(topology: Topology, kind: GroupKind, groups: Sequence[ReplicaGroup], names: Sequence[str]) -> Regrouping:
    if any(map(_is_chief, names)):
        raise UsageError("the chief always trains in the first worker group")
    change = _counted(topology, kind, len([group for group in groups if group.kind is kind]) + 1)
    assert change.after is not None
    last = [group for group in replica_groups(change.after) if group.kind is kind][-1]
    if len(names) > len(last.members):
        most = counted(len(last.members), "replica")
        raise UsageError(f"a new group would have {most}, because groups are equally large: select so many at most")
    joining = [name for name in names if name not in last.members]
    return Regrouping(change.sizes, _partners(topology, joining, last, set(names), backwards=False), change.after)


def _counted(topology: Topology, kind: GroupKind, count: int) -> Regrouping:
    """Returns the effect of changing the number of groups. Raises UsageError if the strategy forbids this number."""
    strategy = topology.strategy
    key = _SETTINGS.get(kind)
    spec = spec_of(strategy.kind)
    has_groups = spec.is_asynchronous and topology.program.launcher is not Launcher.COMMAND
    if key is None or key not in spec.settings or not has_groups:
        raise UsageError(f"{spec.title} has one {_NAMES[kind]}: choose a strategy with several, such as Downpour")
    after = set_strategy(topology, **{key: count})
    sizes = tuple(
        sum(not _is_chief(name) for name in group.members) for group in replica_groups(after) if group.kind is kind
    )
    if len(sizes) != count:
        raise UsageError(f"each {_NAMES[kind]} needs a replica: there can be {len(sizes)} at most")
    return Regrouping(sizes, (), after)

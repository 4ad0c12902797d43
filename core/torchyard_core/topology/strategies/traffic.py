"""Which replica talks to which, as the strategy works. Pure: a topology goes in, edges and groups come out.

Edges come in bundles, one for each two pools that exchange (and for each two groups, where there are any): a bundle
of 64 workers and 8 servers is one value, not 512. Its pairs are listed on demand.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby, pairwise

from torchyard_core.topology.model import Launcher, Role, StrategyKind, Topology
from torchyard_core.topology.replicas import Replica, replicas_of, worker_groups
from torchyard_core.topology.strategies.reduction_cost import Reduction, reckon

MOST_EDGES = 16
"""Between two pools, that are drawn one by one; more are one thick edge with their number."""


class Pattern(StrEnum):
    """What a bundle's edges are."""

    RING = "ring"
    """From each trainer to the next, the last one's to the first: an all-reduce."""
    SERVE = "serve"
    """From every trainer to every server or reducer, and back."""
    NEIGHBOURS = "neighbours"
    """From a group's trainers to those of the next group, rank by rank: Hogwild."""
    CHECKPOINTS = "checkpoints"
    """From the chief to an evaluator, now and then; it is no part of the exchange."""


@dataclass(frozen=True)
class Bundle:
    """Edges of one kind between two sets of replicas."""

    pattern: Pattern
    sources: tuple[str, ...]
    """Names of replicas."""
    targets: tuple[str, ...]
    """Of a ring the same as `sources`."""
    in_step: bool = True
    """False where nobody waits for the other: asynchronous exchange, checkpoints."""

    @property
    def count(self) -> int:
        """How many edges it stands for. A ring of two is one edge, used both ways."""
        if self.pattern is Pattern.RING:
            size = len(self.sources)
            return size if size > 2 else size - 1
        if self.pattern is Pattern.NEIGHBOURS:
            return max(len(self.sources), len(self.targets))
        return len(self.sources) * len(self.targets)

    def pairs(self) -> Iterator[tuple[str, str]]:
        """Every edge by itself, as two replicas."""
        if self.pattern is Pattern.RING:
            yield from zip(self.sources, (*self.sources[1:], self.sources[0]), strict=True)
        elif self.pattern is Pattern.NEIGHBOURS:
            for number in range(self.count):
                yield self.sources[number % len(self.sources)], self.targets[number % len(self.targets)]
        else:
            yield from ((source, target) for source in self.sources for target in self.targets)


@dataclass(frozen=True)
class Group:
    """Replicas that act as one: a worker group or a server group, numbered from 0."""

    serves: bool
    number: int
    members: tuple[str, ...]


@dataclass(frozen=True)
class Traffic:
    """All of a topology's edges and groups."""

    bundles: tuple[Bundle, ...] = ()
    groups: tuple[Group, ...] = ()
    """Empty where everything is one group: a frame round all of it would say nothing."""
    trainers_reduce: bool = False
    """Trainers have a share of the servers' work too: Hogwild, and reducers that are too few by themselves."""

    def of(self, pattern: Pattern) -> tuple[Bundle, ...]:
        return tuple(bundle for bundle in self.bundles if bundle.pattern is pattern)


def traffic_of(topology: Topology) -> Traffic:
    """Edges and groups of a topology. One whose strategy lacks its servers has none yet; `validate` says so."""
    replicas = replicas_of(topology)
    evaluation = _evaluation(replicas)
    if topology.program.launcher is Launcher.COMMAND:
        return Traffic(evaluation)  # The framework decides who talks to whom.
    kind = topology.strategy.kind
    trainers = tuple(replica for replica in replicas if replica.role.trains)
    if kind is StrategyKind.ALL_REDUCE:
        return Traffic((*_ring(trainers), *evaluation))
    if kind is StrategyKind.SANDBLASTER:
        return Traffic((*_served(trainers, _of(replicas, Role.PS)), *evaluation))
    if kind is StrategyKind.REDUCTION_SERVER:
        return _reduced(trainers, _of(replicas, Role.REDUCER), evaluation)
    if kind is StrategyKind.DOWNPOUR:
        return _downpour(topology, replicas, evaluation)
    if kind is StrategyKind.HOGWILD:
        return _hogwild(topology, replicas, evaluation)
    return Traffic(evaluation)


def server_groups(topology: Topology, servers: Sequence[Replica]) -> tuple[tuple[Replica, ...], ...]:
    """The servers cut into contiguous blocks, larger first."""
    count = max(1, min(topology.strategy.server_groups, len(servers)))
    size, larger = divmod(len(servers), count)
    ends = [number * size + min(number, larger) for number in range(count + 1)]
    return tuple(tuple(servers[begin:end]) for begin, end in pairwise(ends))


def _reduced(trainers: tuple[Replica, ...], reducers: tuple[Replica, ...], more: tuple[Bundle, ...]) -> Traffic:
    if not reducers:
        return Traffic(more)
    best = reckon(len(trainers), len(reducers)).best
    if best is Reduction.RING:
        return Traffic((*_ring(trainers), *more))  # As it would run: these reducers would only be in the way.
    return Traffic((*_served(trainers, reducers), *more), trainers_reduce=best is Reduction.MIXED)


def _downpour(topology: Topology, replicas: tuple[Replica, ...], more: tuple[Bundle, ...]) -> Traffic:
    servers = _of(replicas, Role.PS)
    groups = [group for group in worker_groups(topology, replicas) if group]
    if not servers or not groups:
        return Traffic(more)
    served = server_groups(topology, servers)
    bundles: list[Bundle] = []
    for number, group in enumerate(groups):
        bundles += _served(group, served[number % len(served)], in_step=False)
    return Traffic((*bundles, *more), (*_groups(groups, serves=False), *_groups(served, serves=True)))


def _hogwild(topology: Topology, replicas: tuple[Replica, ...], more: tuple[Bundle, ...]) -> Traffic:
    groups = [group for group in worker_groups(topology, replicas) if group]
    bundles = []
    if len(groups) > 1:
        followers = [*groups[1:], groups[0]] if len(groups) > 2 else groups[1:]
        for group, follower in zip(groups, followers, strict=False):
            bundles.append(Bundle(Pattern.NEIGHBOURS, _names(group), _names(follower), in_step=False))
    return Traffic((*bundles, *more), _groups(groups, serves=False), trainers_reduce=True)


def _ring(trainers: Sequence[Replica]) -> tuple[Bundle, ...]:
    names = _names(trainers)
    return (Bundle(Pattern.RING, names, names),) if len(names) > 1 else ()


def _served(trainers: Sequence[Replica], servers: Sequence[Replica], *, in_step: bool = True) -> list[Bundle]:
    return [
        Bundle(Pattern.SERVE, sources, targets, in_step)
        for sources in _by_pool(trainers)
        for targets in _by_pool(servers)
    ]


def _evaluation(replicas: tuple[Replica, ...]) -> tuple[Bundle, ...]:
    chief = next((replica for replica in replicas if replica.role.trains), None)  # the chief pool's, else worker-0
    evaluators = _of(replicas, Role.EVALUATOR)
    if chief is None:
        return ()
    return tuple(Bundle(Pattern.CHECKPOINTS, (chief.name,), names, in_step=False) for names in _by_pool(evaluators))


def _groups(groups: Sequence[Sequence[Replica]], *, serves: bool) -> tuple[Group, ...]:
    if len(groups) < 2:
        return ()
    return tuple(Group(serves, number, _names(members)) for number, members in enumerate(groups))


def _by_pool(replicas: Sequence[Replica]) -> list[tuple[str, ...]]:
    return [_names(tuple(members)) for _, members in groupby(replicas, key=lambda replica: replica.pool_index)]


def _of(replicas: tuple[Replica, ...], role: Role) -> tuple[Replica, ...]:
    return tuple(replica for replica in replicas if replica.role is role)


def _names(replicas: Sequence[Replica]) -> tuple[str, ...]:
    return tuple(replica.name for replica in replicas)

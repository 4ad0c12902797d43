"""Bundles of edges between replicas, and groups of replicas.

A bundle contains all edges of one kind between two sets of replicas: the edges between 64 workers and 8 servers are one
value instead of 512. The pairs of a bundle are listed on demand.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby, pairwise

from torchyard_core.topology.replicas import Replica

MOST_EDGES = 16
"""Maximum number of edges between two pools that are drawn individually.

More edges are drawn as one thick edge that shows their number.
"""


class Pattern(StrEnum):
    """How the edges of a bundle connect replicas."""

    RING = "ring"
    """Edges from each trainer to the next, and from the last to the first, as in an all-reduce."""
    SERVE = "serve"
    """Edges between each trainer and each server or reducer of the bundle."""
    NEIGHBOURS = "neighbours"
    """Edges from a group's trainers to the trainers of the next group, rank by rank, as in Hogwild."""
    AVERAGE = "average"
    """Edges between the first trainers of all groups, as in DiLoCo. They are drawn as a loop."""
    CHECKPOINTS = "checkpoints"
    """Edge from the chief to an evaluator, independent of the exchange of a step."""


LOOPS = (Pattern.RING, Pattern.AVERAGE)
"""Patterns whose edges connect each source with the next."""


@dataclass(frozen=True)
class Bundle:
    """Edges of one kind between two sets of replicas."""

    pattern: Pattern
    sources: tuple[str, ...]
    targets: tuple[str, ...]
    """Names of replicas. For RING and AVERAGE, they are the same as `sources`."""
    in_step: bool = True
    """Whether steps wait for this exchange, unlike exchanges of asynchronous strategies or of checkpoints."""

    @property
    def count(self) -> int:
        """The number of edges. A loop of two replicas is a single edge, which is used in both directions."""
        if self.pattern in LOOPS:
            size = len(self.sources)
            return size if size > 2 else size - 1
        if self.pattern is Pattern.NEIGHBOURS:
            return max(len(self.sources), len(self.targets))
        return len(self.sources) * len(self.targets)

    def pairs(self) -> Iterator[tuple[str, str]]:
        """Yields every edge as a pair of replicas. A loop of two replicas yields both directions."""
        if self.pattern in LOOPS:
            yield from zip(self.sources, (*self.sources[1:], self.sources[0]), strict=True)
        elif self.pattern is Pattern.NEIGHBOURS:
            for number in range(self.count):
                yield self.sources[number % len(self.sources)], self.targets[number % len(self.targets)]
        else:
            yield from ((source, target) for source in self.sources for target in self.targets)


@dataclass(frozen=True)
class Group:
    """Replicas that act as one: a worker group or a server group, with a number from 0."""

    serves: bool
    number: int
    members: tuple[str, ...]


@dataclass(frozen=True)
class Traffic:
    """The edges and groups of a topology."""

    bundles: tuple[Bundle, ...] = ()
    groups: tuple[Group, ...] = ()
    """Worker and server groups. Groups of a kind are listed only if there are several."""
    trainers_reduce: bool = False
    """Whether trainers also perform the work of servers, as in Hogwild, DiLoCo and a mixed reduction."""
    has_reducers: bool = False
    """Whether the servers are reducers, which hold no parameters."""

    def of(self, pattern: Pattern) -> tuple[Bundle, ...]:
        return tuple(bundle for bundle in self.bundles if bundle.pattern is pattern)


def ring(trainers: Sequence[Replica]) -> tuple[Bundle, ...]:
    """Returns the edges of an all-reduce, or none for a single trainer."""
    names = names_of(trainers)
    return (Bundle(Pattern.RING, names, names),) if len(names) > 1 else ()


def served(trainers: Sequence[Replica], servers: Sequence[Replica], *, in_step: bool = True) -> tuple[Bundle, ...]:
    """Returns the edges from every trainer to every server, one bundle for each pair of pools."""
    return tuple(
        Bundle(Pattern.SERVE, sources, targets, in_step)
        for sources in by_pool(trainers)
        for targets in by_pool(servers)
    )


def groups_of(groups: Sequence[Sequence[Replica]], *, serves: bool) -> tuple[Group, ...]:
    """Returns the groups, numbered from 0, or none if all replicas form one group."""
    if len(groups) < 2:
        return ()
    return tuple(Group(serves, number, names_of(members)) for number, members in enumerate(groups))


def by_pool(replicas: Sequence[Replica]) -> list[tuple[str, ...]]:
    """Returns the names of the replicas of each pool."""
    return [names_of(tuple(members)) for _, members in groupby(replicas, key=lambda replica: replica.pool_index)]


def contiguous_blocks(replicas: tuple[Replica, ...], count: int) -> tuple[tuple[Replica, ...], ...]:
    """Divides the replicas into `count` blocks, larger blocks first."""
    size, larger = divmod(len(replicas), count)
    ends = [number * size + min(number, larger) for number in range(count + 1)]
    return tuple(replicas[begin:end] for begin, end in pairwise(ends))


def names_of(replicas: Sequence[Replica]) -> tuple[str, ...]:
    return tuple(replica.name for replica in replicas)

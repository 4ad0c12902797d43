"""The edges that show a strategy's traffic between hosts.

An all-reduce or an average of worker groups is drawn as a ring through all hosts that take part. The connections to
servers are drawn as one line with branches, called a trunk. An exchange between two neighbours, or a copy of a
checkpoint, is drawn as a line between two hosts. Traffic inside a host has no edge.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from torchyard_core.topology.model import Strategy
from torchyard_core.topology.strategies.registry import spec_of
from torchyard_core.topology.strategies.traffic import MOST_EDGES, Pattern, Traffic
from torchyard_gui.canvas.edges.gutters import Gutters, Point
from torchyard_gui.canvas.edges.routes import Hop, HopLook, Trunk, between, lay_trunk, loop
from torchyard_gui.canvas.labels import translate
from torchyard_gui.canvas.racks.layout import Grid

Port = Literal["trains", "serves", "both"]
"""The role of a host in the exchange: ○ trains, ■ serves, ⊡ does both."""

NEIGHBOUR_HOSTS = 32
"""If more hosts than this exchange data with neighbours, one ring through all of these hosts replaces the edges between
neighbours, because so many edges could not be distinguished.
"""

RING = HopLook()
NEIGHBOURS = HopLook(dashed=True, arrows=False, ports=("both", "both"))
AVERAGE = HopLook(dashed=True, arrows=False)
CHECKPOINTS = HopLook(dashed=True, thin=True, ports=("", ""))


@dataclass(frozen=True)
class HostTraffic:
    """The traffic between hosts, from which edges are routed. Equal traffic on equal grids has equal routes."""

    ring: frozenset[str] = frozenset()
    trunk: tuple[tuple[str, Port], ...] = ()
    average: frozenset[str] = frozenset()
    neighbours: tuple[tuple[str, str], ...] = ()
    checkpoints: tuple[tuple[str, str], ...] = ()
    in_step: bool = True
    has_reducers: bool = False
    """Whether the hosts that serve run reducers rather than parameter servers."""
    label: tuple[str, ...] = ()
    """Parts of the edge label, such as how often the replicas push and pull."""
    count: int = 0
    """The number of edges between replicas that the trunk represents, if it is more than MOST_EDGES; otherwise 0."""
    load: tuple[str, ...] = ()
    """The amount of data per step on the busiest link, as the parts of a label."""


@dataclass(frozen=True)
class Lines:
    """The routes of all edges, as drawn."""

    hops: tuple[Hop, ...] = ()
    trunk: Trunk | None = None


def host_traffic(traffic: Traffic, host_of: Mapping[str, str], strategy: Strategy) -> HostTraffic:
    """Converts the traffic between replicas to traffic between hosts.

    Args:
        host_of: The host of each placed replica, or its section or group if these are drawn instead of hosts.
    """

    def hosts(names: Iterable[str]) -> frozenset[str]:
        return frozenset(host_of[name] for name in names if name in host_of)

    serve = traffic.of(Pattern.SERVE)
    sources = hosts(name for bundle in serve for name in bundle.sources)
    targets = hosts(name for bundle in serve for name in bundle.targets)
    trunk = sources | targets
    count = sum(bundle.count for bundle in serve)
    return HostTraffic(
        ring=hosts(name for bundle in traffic.of(Pattern.RING) for name in bundle.sources),
        # A single host exchanges data only with itself, so no trunk is drawn for it.
        trunk=tuple((host, _port(host, sources, targets, traffic)) for host in sorted(trunk) if len(trunk) > 1),
        average=hosts(name for bundle in traffic.of(Pattern.AVERAGE) for name in bundle.sources),
        neighbours=_pairs(traffic, Pattern.NEIGHBOURS, host_of),
        checkpoints=_pairs(traffic, Pattern.CHECKPOINTS, host_of),
        in_step=not spec_of(strategy.kind).is_asynchronous,
        has_reducers=traffic.has_reducers,
        label=_label(strategy),
        count=count if count > MOST_EDGES else 0,
    )


def lay(grid: Grid, wiring: HostTraffic) -> Lines:
    """Routes the traffic on a grid. The edges of checkpoints are routed last, because they must avoid all other
    edges.
    """
    gutters = Gutters(grid)
    hops: list[Hop] = list(loop(grid, wiring.ring, gutters, RING))
    hops += loop(grid, wiring.average, gutters, AVERAGE)
    if wiring.neighbours:
        members = {host for pair in wiring.neighbours for host in pair}
        if len(members) > NEIGHBOUR_HOSTS:
            hops += loop(grid, members, gutters, NEIGHBOURS)
        else:
            hops += between(grid, wiring.neighbours, gutters, NEIGHBOURS)
    trunk = lay_trunk(grid, wiring.trunk, gutters) if wiring.trunk else None
    hops += between(grid, wiring.checkpoints, gutters, CHECKPOINTS)
    return Lines(tuple(hops), trunk)


def scaled(lines: Lines, scale: float) -> Lines:
    """Multiplies the coordinates of routes by `scale`. On a layer with the scale 1/`scale`, the routes keep their
    positions, and their lines have the same width at any zoom.
    """

    def path(points: tuple[Point, ...]) -> tuple[Point, ...]:
        return tuple((x * scale, y * scale) for x, y in points)

    trunk = lines.trunk
    if trunk is not None:
        trunk = replace(
            trunk,
            branches=tuple(replace(branch, points=path(branch.points)) for branch in trunk.branches),
            stems=tuple((path(ends)[0], path(ends)[1]) for ends in trunk.stems),
            label_at=path((trunk.label_at,))[0],
        )
    return Lines(tuple(replace(hop, points=path(hop.points)) for hop in lines.hops), trunk)


def leaving_edges(traffic: Traffic, place_of: Mapping[str, str]) -> Counter[str]:
    """Counts, for each section of the canvas, the edges of the exchange that connect the section to other sections.

    Args:
        place_of: Section of each placed replica.
    """
    found: Counter[str] = Counter()
    for bundle in traffic.bundles:
        if bundle.pattern is Pattern.SERVE:
            sources = Counter(place_of[name] for name in bundle.sources if name in place_of)
            targets = Counter(place_of[name] for name in bundle.targets if name in place_of)
            for place in {*sources, *targets}:
                found[place] += sources[place] * (targets.total() - targets[place])
                found[place] += targets[place] * (sources.total() - sources[place])
        elif bundle.pattern is not Pattern.CHECKPOINTS:
            for source, target in bundle.pairs():
                one, other = place_of.get(source), place_of.get(target)
                if one is not None and other is not None and one != other:
                    found.update((one, other))
    return found


def _port(host: str, sources: frozenset[str], targets: frozenset[str], traffic: Traffic) -> Port:
    if host in sources and (host in targets or traffic.trainers_reduce):
        return "both"
    return "trains" if host in sources else "serves"


def _pairs(traffic: Traffic, pattern: Pattern, host_of: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Returns each pair of different hosts that edges of a pattern connect. Each pair occurs once."""
    found: dict[tuple[str, str], None] = {}
    for bundle in traffic.of(pattern):
        for source, target in bundle.pairs():
            one, other = host_of.get(source), host_of.get(target)
            if one is not None and other is not None and one != other and (other, one) not in found:
                found[one, other] = None
    return tuple(found)


def _label(strategy: Strategy) -> tuple[str, ...]:
    """Returns the parts of the edge label, such as how often the replicas push and pull."""
    return tuple(
        translate("Canvas", template).format(steps=getattr(strategy, key))
        for template, key in spec_of(strategy.kind).edge_labels
    )

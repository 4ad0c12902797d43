"""A strategy's traffic between hosts: which of them are on a loop, on a trunk, neighbours, or fed with checkpoints.

Pure. Edges run host to host: what two replicas of one host say to each other needs no line.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from torchyard_core.topology.model import Strategy
from torchyard_core.topology.strategies.registry import spec_of
from torchyard_core.topology.strategies.traffic import MOST_EDGES, Pattern, Traffic
from torchyard_gui.canvas.edges.gutters import Gutters
from torchyard_gui.canvas.edges.routes import Hop, HopLook, Trunk, between, lay_trunk, loop
from torchyard_gui.canvas.labels import translate
from torchyard_gui.canvas.racks.layout import Grid

Port = Literal["trains", "serves", "both"]
"""What a host does in the exchange: ○, ■, ⊡."""

NEIGHBOUR_HOSTS = 32
"""On more hosts a loop over all of them stands for who is whose neighbour: single lines could not be told apart."""

RING = HopLook()
NEIGHBOURS = HopLook(dashed=True, arrows=False, ports=("both", "both"))
CHECKPOINTS = HopLook(dashed=True, thin=True, ports=("", ""))


@dataclass(frozen=True)
class Wiring:
    """Everything that lines are laid for. Equal wirings on equal grids have equal lines."""

    ring: frozenset[str] = frozenset()
    trunk: tuple[tuple[str, Port], ...] = ()
    neighbours: tuple[tuple[str, str], ...] = ()
    checkpoints: tuple[tuple[str, str], ...] = ()
    in_step: bool = True
    label: tuple[str, ...] = ()
    """Parts of what a pill says."""
    count: int = 0
    """Edges of the trunk, where they are too many to be drawn one by one; else 0."""


@dataclass(frozen=True)
class Lines:
    """What is drawn."""

    hops: tuple[Hop, ...] = ()
    trunk: Trunk | None = None


def wiring_of(traffic: Traffic, host_of: Mapping[str, str], strategy: Strategy) -> Wiring:
    """The traffic between hosts. `host_of`: those of the replicas that have a place."""

    def hosts(names: Iterable[str]) -> frozenset[str]:
        return frozenset(host_of[name] for name in names if name in host_of)

    serve = traffic.of(Pattern.SERVE)
    sources = hosts(name for bundle in serve for name in bundle.sources)
    targets = hosts(name for bundle in serve for name in bundle.targets)
    trunk = sources | targets
    count = sum(bundle.count for bundle in serve)
    return Wiring(
        ring=hosts(name for bundle in traffic.of(Pattern.RING) for name in bundle.sources),
        # A host that is alone on a trunk exchanges with itself only.
        trunk=tuple((host, _port(host, sources, targets, traffic)) for host in sorted(trunk) if len(trunk) > 1),
        neighbours=_pairs(traffic, Pattern.NEIGHBOURS, host_of),
        checkpoints=_pairs(traffic, Pattern.CHECKPOINTS, host_of),
        in_step=not spec_of(strategy.kind).is_asynchronous,
        label=_label(strategy),
        count=count if count > MOST_EDGES else 0,
    )


def lay(grid: Grid, wiring: Wiring) -> Lines:
    """Lines on a grid of racks: what belongs to the exchange first, checkpoints go round it."""
    gutters = Gutters(grid)
    hops: list[Hop] = list(loop(grid, wiring.ring, gutters, RING))
    if wiring.neighbours:
        members = {host for pair in wiring.neighbours for host in pair}
        if len(members) > NEIGHBOUR_HOSTS:
            hops += loop(grid, members, gutters, NEIGHBOURS)
        else:
            hops += between(grid, wiring.neighbours, gutters, NEIGHBOURS)
    trunk = lay_trunk(grid, wiring.trunk, gutters) if wiring.trunk else None
    hops += between(grid, wiring.checkpoints, gutters, CHECKPOINTS)
    return Lines(tuple(hops), trunk)


def _port(host: str, sources: frozenset[str], targets: frozenset[str], traffic: Traffic) -> Port:
    if host in sources and (host in targets or traffic.trainers_reduce):
        return "both"
    return "trains" if host in sources else "serves"


def _pairs(traffic: Traffic, pattern: Pattern, host_of: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Hosts that exchange with each other, each two once."""
    found: dict[tuple[str, str], None] = {}
    for bundle in traffic.of(pattern):
        for source, target in bundle.pairs():
            one, other = host_of.get(source), host_of.get(target)
            if one is not None and other is not None and one != other and (other, one) not in found:
                found[one, other] = None
    return tuple(found)


def _label(strategy: Strategy) -> tuple[str, ...]:
    """How often it exchanges, where that is not once a step."""
    return tuple(
        translate("Canvas", template).format(steps=getattr(strategy, key))
        for template, key in spec_of(strategy.kind).edge_labels
    )

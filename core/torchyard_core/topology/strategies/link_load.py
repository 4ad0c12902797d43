"""Network load of each host, or other location, caused by the exchange of one step.

The unit is M, the size of the gradients. Links are full-duplex. The load of a link is the load in its busier direction.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from torchyard_core.topology.model import StrategyKind, Topology
from torchyard_core.topology.strategies.reduction_cost import mixed_parts, ring_time
from torchyard_core.topology.strategies.traffic import Bundle, Pattern, Traffic


def link_loads(topology: Topology, traffic: Traffic, place_of: Mapping[str, str]) -> dict[str, float]:
    """Returns the network load of each location per step, in units of M, the size of the gradients.

    Data between replicas at the same location use no link. Hogwild's exchanges between neighbours and DiLoCo's
    averaging, with or without servers, are omitted, since most steps do not include them.

    Args:
        traffic: The traffic of the topology.
        place_of: The location of each placed replica.
    """
    sent: dict[str, float] = defaultdict(float)
    received: dict[str, float] = defaultdict(float)
    for bundle in traffic.of(Pattern.RING):
        places = {place_of[name] for name in bundle.sources if name in place_of}
        if len(places) > 1:
            for place in places:
                sent[place] += ring_time(len(bundle.sources))
    serve = traffic.of(Pattern.SERVE) if topology.strategy.kind is not StrategyKind.DILOCO else ()
    if traffic.trainers_reduce and serve:
        return _mixed_loads(serve, place_of)
    push, pull = _intervals(topology)
    servers: Counter[str] = Counter()
    for bundle in serve:
        for name in bundle.sources:
            servers[name] += len(bundle.targets)
    for bundle in serve:
        shards = servers[bundle.sources[0]]
        sources = Counter(place_of[name] for name in bundle.sources if name in place_of)
        targets = Counter(place_of[name] for name in bundle.targets if name in place_of)
        for place in {*sources, *targets}:
            out = sources[place] * (targets.total() - targets[place]) / shards
            back = targets[place] * (sources.total() - sources[place]) / shards
            sent[place] += out / push + back / pull
            received[place] += out / pull + back / push
    loads = {place: max(sent[place], received[place]) for place in {*sent, *received}}
    return {place: load for place, load in loads.items() if load}


def _mixed_loads(serve: Iterable[Bundle], place_of: Mapping[str, str]) -> dict[str, float]:
    """Returns the loads if both trainers and reducers sum gradients. A link's loads in its two directions are equal."""
    trainers = Counter(place_of[name] for name in {name for each in serve for name in each.sources} if name in place_of)
    reducers = Counter(place_of[name] for name in {name for each in serve for name in each.targets} if name in place_of)
    of_trainer, of_reducer = mixed_parts(trainers.total(), reducers.total())
    loads = {}
    for place in {*trainers, *reducers}:
        trainers_elsewhere = trainers.total() - trainers[place]
        reducers_elsewhere = reducers.total() - reducers[place]
        # A trainer sends each part to the participant that sums the part, and sends the sum of its own part to all
        # trainers.
        by_trainer = 2 * of_trainer * trainers_elsewhere + of_reducer * reducers_elsewhere
        loads[place] = trainers[place] * by_trainer + reducers[place] * of_reducer * trainers_elsewhere
    return {place: load for place, load in loads.items() if load}


def _intervals(topology: Topology) -> tuple[int, int]:
    """Returns the number of steps between two pushes, and between two pulls."""
    strategy = topology.strategy
    return (strategy.push_every, strategy.pull_every) if strategy.kind is StrategyKind.DOWNPOUR else (1, 1)


@dataclass(frozen=True)
class ExchangeFacts:
    """The known properties of an exchange. Unknown values are None."""

    gradient_bytes: float | None = None
    """M: the size of the gradients in bytes."""
    link_bytes_s: float | None = None
    """B: the bandwidth of the slowest link in bytes per second."""

    def bytes_of(self, load: float) -> float | None:
        return None if self.gradient_bytes is None else load * self.gradient_bytes

    def seconds_of(self, load: float) -> float | None:
        """Returns the duration in seconds of sending a load over the slowest link, or None if it is unknown."""
        size = self.bytes_of(load)
        return None if size is None or not self.link_bytes_s else size / self.link_bytes_s

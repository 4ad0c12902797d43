"""Candidate topologies for a fleet: every strategy with different numbers of workers, servers, reducers and groups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import log, sqrt

import numpy as np

from torchyard_core.advisor.exchange_load import ring_loads, slowest_s
from torchyard_core.advisor.fleet_hosts import AdvisedFleet
from torchyard_core.advisor.prediction import RING_EFFICIENCY, SERVED_EFFICIENCY, WIRE_SHARE, Layout
from torchyard_core.advisor.trainer_compute import TrainerCompute
from torchyard_core.errors import UsageError
from torchyard_core.topology.document.edits import add_replicas, remove_replicas, set_pools, set_strategy
from torchyard_core.topology.model import PlacementRule, Pool, Role, Strategy, StrategyKind, Topology
from torchyard_core.topology.placement.planner import Slot, place
from torchyard_core.topology.replicas import replicas_of
from torchyard_core.topology.strategies.reduction_cost import Reduction, fastest_reduction, mixed_time
from torchyard_core.topology.strategies.registry import spec_of
from torchyard_core.topology.strategies.worker_groups import worker_groups

SAME_RESULT = (StrategyKind.ALL_REDUCE, StrategyKind.REDUCTION_SERVER, StrategyKind.SANDBLASTER)
"""Strategies that give the same result as one process that trains on all batches together."""
OTHER_RESULT = (StrategyKind.DOWNPOUR, StrategyKind.HOGWILD, StrategyKind.DILOCO)
"""Strategies that change the result of training."""
ALL_COUNTS_UP_TO = 64
"""Up to this value, every number of trainers is considered. Above it, only multiples of the number of trainers per host
are considered, and the largest number that fits.
"""
UNCHECKED_TRAINERS = 8
"""Number of GPU trainers that are assumed to fit on a host whose hardware is unknown."""


@dataclass(frozen=True)
class Counts:
    """The strategy of a candidate, and its numbers of trainers, servers and worker groups."""

    kind: StrategyKind
    trainers: int
    servers: int = 0
    groups: int = 1


@dataclass(frozen=True)
class Room:
    """The hosts on which trainers and servers can be placed, as indices into the fleet's hosts, fastest first."""

    trainers: tuple[int, ...]
    """The host of each trainer that fits. A host appears once for each trainer that fits on the host."""
    servers: tuple[int, ...]
    """The hosts on which a server fits."""


def trainer_pool(topology: Topology) -> int:
    """Returns the index of the topology's pool of trainers: the largest pool of workers, or else the chief's pool.

    Raises UsageError for a topology without trainers.
    """
    pools = [number for number, pool in enumerate(topology.pools) if pool.role is Role.WORKER]
    if pools:
        return max(pools, key=lambda number: topology.pools[number].replicas)
    chiefs = [number for number, pool in enumerate(topology.pools) if pool.role is Role.CHIEF]
    if not chiefs:
        raise UsageError("there is no trainer in the topology.", code="no_trainers", hint="Add a pool of role worker.")
    return chiefs[0]


def room_on(topology: Topology, fleet: AdvisedFleet) -> Room:
    """Returns the hosts on which the planner can place trainers and servers if it ignores the topology's pins."""
    position = trainer_pool(topology)
    pool = topology.pools[position]
    trains = [number for number, host in enumerate(fleet.hosts) if host.compute is not None]
    facts = [fleet.facts[number] for number in trains]
    # Without GPUs, each host gets only one trainer, since trainers on the same cores would slow each other down.
    most = len(facts)
    if pool.gpus:
        most = sum(len(host.gpus) // pool.gpus if host.checked else UNCHECKED_TRAINERS for host in facts)
    counted = set_pools(_alone(topology, position), (0,), replicas=max(1, most))
    if not pool.gpus:
        counted = set_pools(counted, (0,), placement=PlacementRule.SPREAD.value)
    slots = place(counted, facts).slots.values() if facts else ()
    fits = Counter(slot.host for slot in slots)
    if not pool.gpus:
        fits = Counter(dict.fromkeys(fits, 1))
    numbers = sorted((fleet.number(name) for name in fits), key=lambda number: _slowness(fleet, number))
    trainers = tuple(number for number in numbers for _ in range(fits[fleet.hosts[number].name]))
    return Room(trainers, tuple(_server_hosts(topology, fleet)))


def _alone(topology: Topology, position: int) -> Topology:
    pool = topology.pools[position].model_copy(update={"role": Role.WORKER, "min_replicas": None})
    return topology.model_copy(update={"pools": (pool,), "pins": {}, "strategy": Strategy()})


def _slowness(fleet: AdvisedFleet, number: int) -> tuple[float, float, int]:
    host = fleet.hosts[number]
    return host.compute.gradient_s if host.compute is not None else 0.0, -host.link_bytes_s, number


def _server_hosts(topology: Topology, fleet: AdvisedFleet) -> Iterator[int]:
    existing = next((pool for pool in topology.pools if pool.role in (Role.PS, Role.REDUCER)), None)
    pool = existing or Pool(name="servers", role=Role.PS, replicas=1)
    count = max(1, len(fleet.facts))
    wide = pool.model_copy(update={"role": Role.PS, "replicas": count, "placement": PlacementRule.SPREAD})
    slots = place(topology.model_copy(update={"pools": (wide,), "pins": {}}), fleet.facts).slots
    names = dict.fromkeys(slot.host for slot in slots.values())
    return iter(sorted(map(fleet.number, names), key=lambda number: -fleet.hosts[number].link_bytes_s))


class Scan:
    """Estimates the speed of every candidate by closed forms, to select the candidates that are simulated."""

    def __init__(self, topology: Topology, fleet: AdvisedFleet, room: Room):
        self._strategy = topology.strategy
        self._fleet = fleet
        self._room = room
        self._ranks = max(1, topology.pools[trainer_pool(topology)].gpus)
        self._rates = {number: host.link_bytes_s for number, host in enumerate(fleet.hosts)}
        self._of: dict[int, TrainerCompute] = {
            number: host.compute for number, host in enumerate(fleet.hosts) if host.compute is not None
        }
        self._size = float(self._of[room.trainers[0]].model_bytes)

    def numbers(self) -> list[int]:
        """Returns the trainer counts to consider, smallest first."""
        most = len(self._room.trainers)
        per_host = max(Counter(self._room.trainers).values())
        return [
            count for count in range(1, most + 1) if count <= ALL_COUNTS_UP_TO or not count % per_host or count == most
        ]

    def candidates(self, kinds: Sequence[StrategyKind]) -> list[tuple[float, Counts]]:
        """Returns every candidate with its estimated samples/s, fastest first."""
        found: list[tuple[float, Counts]] = []
        for count in self.numbers():
            found += self._with(count, kinds)
        return sorted(found, key=lambda item: (-item[0], item[1].trainers, item[1].servers))

    def _with(self, count: int, kinds: Sequence[StrategyKind]) -> Iterator[tuple[float, Counts]]:
        hosts = self._room.trainers[:count]
        ranks = count * self._ranks
        computing = {host: self._of[host] for host in dict.fromkeys(hosts)}
        samples = sum(self._of[host].samples for host in hosts) * self._ranks
        slowest = max(computing.values(), key=lambda each: each.gradient_s)
        # The step begins its exchange when the slowest rank is ready. `noise` approximates the expected difference
        # between the maximum and the mean of `ranks` normally distributed durations (Cramér 1946).
        noise = slowest.spread_s * sqrt(2 * log(ranks)) * 0.8 if ranks > 1 else 0.0
        ready = slowest.gradient_s + noise
        optimizer = slowest.optimizer_s
        ring = slowest_s(ring_loads([host for host in hosts for _ in range(self._ranks)]), self._rates, self._size)
        ring /= RING_EFFICIENCY
        together = max(ready, slowest.before_s + ring) + optimizer
        corrections = {kind: self._fleet.correction(kind, computing) for kind in kinds}

        def speed(kind: StrategyKind, step_s: float, computed_s: float) -> float:
            return samples / corrections[kind].step_s(computed_s, step_s - computed_s)

        if StrategyKind.ALL_REDUCE in kinds:
            yield speed(StrategyKind.ALL_REDUCE, together, ready + optimizer), Counts(StrategyKind.ALL_REDUCE, count)
        slowest_rate = min(self._rates[host] for host in computing)
        served = self._served(hosts) if {*kinds} & {*SAME_RESULT[1:], StrategyKind.DOWNPOUR} else []
        divisors = [groups for groups in range(2, count + 1) if count % groups == 0]
        for servers, time in enumerate(served, 1):
            if StrategyKind.REDUCTION_SERVER in kinds and count > 1:
                step = (
                    max(ready, slowest.before_s + self._reduced(count, servers, time, ring, slowest_rate)) + optimizer
                )
                yield (
                    speed(StrategyKind.REDUCTION_SERVER, step, ready + optimizer),
                    Counts(StrategyKind.REDUCTION_SERVER, count, servers),
                )
            if StrategyKind.SANDBLASTER in kinds:
                yield (
                    speed(StrategyKind.SANDBLASTER, ready + time, ready),
                    Counts(StrategyKind.SANDBLASTER, count, servers),
                )
            if StrategyKind.DOWNPOUR in kinds:
                each = time / min(self._strategy.push_every, self._strategy.pull_every)
                for groups in divisors:
                    alone = slowest.gradient_s + noise * (1 - 1 / max(1, count // groups))
                    yield (
                        speed(StrategyKind.DOWNPOUR, max(alone, each), alone),
                        Counts(StrategyKind.DOWNPOUR, count, servers, groups),
                    )
        for groups in divisors:
            inner = slowest.gradient_s + optimizer if groups == count else together
            share = 2 * (groups - 1) / groups / (slowest_rate * SERVED_EFFICIENCY)
            if StrategyKind.HOGWILD in kinds:
                # Under Hogwild, training never waits for an exchange.
                yield speed(StrategyKind.HOGWILD, inner, inner), Counts(StrategyKind.HOGWILD, count, 0, groups)
            if StrategyKind.DILOCO in kinds:
                size = slowest.float32_bytes * WIRE_SHARE[self._strategy.wire]
                exchange = share * size / self._strategy.inner_steps
                yield samples / (inner + exchange), Counts(StrategyKind.DILOCO, count, 0, groups)

    def _reduced(self, trainers: int, servers: int, served: float, ring: float, slowest_rate: float) -> float:
        best = fastest_reduction(trainers, servers).best
        if best is Reduction.RING:
            return ring
        if best is Reduction.REDUCERS:
            return served
        return mixed_time(trainers, servers) * self._size / (slowest_rate * SERVED_EFFICIENCY)

    def _served(self, hosts: Sequence[int]) -> list[float]:
        """Returns the durations in seconds of an exchange with 1, 2, … servers.

        Servers are placed first on hosts without trainers.
        """
        used = Counter(hosts)
        order = sorted(self._room.servers, key=lambda host: host in used)
        total = len(hosts) * self._ranks
        columns = list(dict.fromkeys([*order, *hosts]))
        own = np.array([used[host] * self._ranks for host in columns], dtype=float)
        rate = np.array([self._rates[host] for host in columns])
        counts = np.arange(1, len(order) + 1)[:, None]
        shares = (np.arange(len(columns))[None, :] < counts) / counts
        loads = own * (1 - shares) + shares * (total - own)
        times: list[float] = (loads / rate * self._size / SERVED_EFFICIENCY).max(axis=1).tolist()
        return times


def strategy_for(topology: Topology, counts: Counts) -> Topology:
    """Returns the topology with the strategy and groups of a candidate.

    Settings that have no effect under the candidate's strategy are reset.
    """
    spec = spec_of(counts.kind)
    changes = {
        key: Strategy.model_fields[key].get_default(call_default_factory=True)
        for key in topology.strategy.model_fields_set - spec.settings - {"kind"}
    }
    workers = counts.trainers - any(pool.role is Role.CHIEF for pool in topology.pools)
    groups = counts.groups if "worker_groups" in spec.settings and counts.groups != workers else None
    if counts.kind is StrategyKind.DILOCO and counts.servers:
        changes |= {"fragments": 1, "overlap_steps": 0, "mixing": None}
    return set_strategy(topology, **{**changes, "kind": counts.kind.value, "worker_groups": groups})


def topology_for(topology: Topology, counts: Counts, hosts: Sequence[str] = ()) -> Topology:
    """Returns the topology with the strategy and the counts of a candidate.

    Args:
        hosts: The only hosts that the pool of trainers may use; empty for all hosts that the topology allows.

    Raises:
        UsageError: The topology cannot have these counts.
    """
    after = strategy_for(topology, counts)
    position = trainer_pool(after)
    pool = after.pools[position]
    others = sum(each.replicas for number, each in enumerate(after.pools) if each.role.trains and number != position)
    wanted = counts.trainers - others
    if pool.role is Role.CHIEF:
        if counts.trainers > 1:
            after, _ = add_replicas(after, Role.WORKER, counts.trainers - 1, gpus=pool.gpus)
            kept = {
                key: getattr(pool, key)
                for key in ("gpu_model", "gpu_memory_gb", "labels", "hosts")
                if getattr(pool, key)
            }
            if kept:
                after = set_pools(after, (len(after.pools) - 1,), **_as_data(kept))
    elif wanted < 0 or (wanted == 0 and not others):
        raise UsageError("other pools have more trainers", code="wrong-value")
    elif wanted == 0:
        after = remove_replicas(after, [each.name for each in replicas_of(after) if each.pool_index == position])
    else:
        after = set_pools(after, (position,), replicas=wanted, **({"hosts": list(hosts)} if hosts else {}))
    role = spec_of(counts.kind).server_role
    for unused in (Role.PS, Role.REDUCER):
        now = [each.name for each in replicas_of(after) if each.role is unused]
        count = counts.servers if unused is role else 0
        if len(now) > count:
            after = remove_replicas(after, now[count:])
        elif len(now) < count:
            after, _ = add_replicas(after, unused, count - len(now))
    return after


def _as_data(values: dict[str, object]) -> dict[str, object]:
    return {key: list(value) if isinstance(value, tuple) else value for key, value in values.items()}


def counts_of(topology: Topology) -> Counts:
    """Returns the strategy of a topology, and its numbers of trainers, servers and worker groups.

    A topology without a strategy counts as all-reduce.
    """
    replicas = replicas_of(topology)
    role = spec_of(topology.strategy.kind).server_role
    kind = topology.strategy.kind
    return Counts(
        StrategyKind.ALL_REDUCE if kind is StrategyKind.NONE else kind,
        sum(each.role.trains for each in replicas),
        sum(each.role is role for each in replicas if role is not None),
        len(worker_groups(topology, replicas)),
    )


def layout_of(topology: Topology, slots: dict[str, Slot], fleet: AdvisedFleet) -> Layout | None:
    """Returns the layout of a placed topology; None if a replica is not placed or a trainer's host has no profile."""
    replicas = replicas_of(topology)
    role = spec_of(topology.strategy.kind).server_role
    needed = [each for each in replicas if each.role.trains or each.role is role]
    if any(each.name not in slots for each in needed):
        return None
    groups = tuple(
        tuple(fleet.number(slots[each.name].host) for each in group)
        for group in worker_groups(topology, replicas)
        if group
    )
    if not groups or any(fleet.hosts[host].compute is None for group in groups for host in group):
        return None
    servers = tuple(fleet.number(slots[each.name].host) for each in needed if each.role is role)
    gpus = [each.pool.gpus for each in needed if each.role.trains]
    return Layout(topology.strategy, groups, servers, max(1, min(gpus)))

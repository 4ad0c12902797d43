"""Deterministic placement of replicas on hosts and GPUs.

Order: Replicas pinned to GPUs are placed first, then replicas pinned to hosts, then the pools. Pools are sorted by the
number of GPUs or hosts that they can use, smallest first, so pools with a large choice do not take scarce GPUs from
other pools. Among equal pools, trainers come first, then evaluators, then servers and reducers. If replicas remain
unplaced, other orders are tried, and the placement with the most trainers, then the most replicas, is returned.

Pins: A pin should move as few other replicas as possible. The *home* of a replica is its slot (host and GPUs) in a
placement that ignores all pins. A replica that is not pinned stays at home unless a pinned replica takes its GPUs, in
which case it moves to the home of the pinned replica if it fits there. A replica without GPUs leaves its host if a
replica of the same class is pinned there, which keeps replicas evenly spread. If this leaves replicas unplaced, the
pools are placed around the pins instead, provided that this places more trainers or, with the same number of trainers,
more replicas. Homes depend only on topology and hosts, so the same file gives the same plan in the window, in the
command and in a launch.

Rules:

- *pack* stays on a host while it has capacity. Then it uses the smallest host that holds all remaining replicas or, if
  there is none, the largest host. The chief is packed together with the workers.
- *spread* uses the host with the fewest replicas of the same class (trainers; servers and reducers), then with the
  fewest replicas of the run. It is the default for pools without GPUs, and for pools whose hosts were never checked.
- If workers use GPUs, a chief without GPUs is placed after them, on the host with the most workers that has capacity. A
  chief leaves its home if pins have taken all other trainers from that host.
- A machine type determines CPUs, memory and GPU model unless the pool sets them. Hosts whose label `machine` names this
  type are preferred.
- Servers and reducers are placed on hosts with GPUs only if no comparable host without GPUs has capacity.
- If the fleet has remote hosts, this computer is used only for replicas that are pinned to it or whose pool lists it in
  `hosts`.
- A host that was never checked is assumed to have capacity; packing uses it after the checked hosts.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from types import MappingProxyType

from torchyard_core.next_steps import AddHost, CheckHosts, DeployAgent
from torchyard_core.problems import LineOf, Problem, no_lines
from torchyard_core.topology.host_facts import Gpu, HostFacts
from torchyard_core.topology.machine_types import same_machine, with_machine_sizes
from torchyard_core.topology.model import PlacementRule, Pool, Role, Topology
from torchyard_core.topology.placement.capacity import SERVERS, TRAINERS, HostCapacity, spread_class, suits
from torchyard_core.topology.placement.infeasibility import explain_infeasible
from torchyard_core.topology.placement.pin_syntax import GpuChoice, parse_pin
from torchyard_core.topology.replicas import Replica, replicas_of

MANY = 1_000_000
"""A number larger than the number of GPUs of any fleet, which sorts pools that use GPUs before other pools."""
MACHINE_LABEL = "machine"
"""The label that gives a host's machine type."""


@dataclass(frozen=True, slots=True)
class Slot:
    """The host of a replica, and its GPUs on that host."""

    host: str
    gpus: tuple[Gpu, ...]


@dataclass(frozen=True)
class Placement:
    """The slots by replica, errors about replicas without a slot, and warnings about hosts that were never checked."""

    slots: Mapping[str, Slot]
    problems: tuple[Problem, ...]


def place(
    topology: Topology,
    hosts: Sequence[HostFacts],
    line: LineOf = no_lines,
    homes: Mapping[str, Slot] | None = None,
) -> Placement:
    """Assigns a host and GPUs to every replica that fits. GPUs in a host's `busy_gpus` are not used.

    `homes` is the result of `homes_of(topology, hosts)`. Callers that try several pins of the same pools on the same
    hosts pass `homes`, so that the homes are computed only once.
    """
    topology = with_machine_sizes(topology)
    if not topology.pins:
        return _best_attempt(topology, hosts, line).placement()
    if homes is None:
        homes = homes_of(topology, hosts)
    best = _PlacementAttempt(topology, hosts, line, homes)
    best.place_pools(best.order(_usual_order))
    if best.short:
        best = max(best, _best_attempt(topology, hosts, line), key=lambda one: one.placed)
    return best.placement()


def homes_of(topology: Topology, hosts: Sequence[HostFacts]) -> Mapping[str, Slot]:
    """Returns the homes of all replicas that fit: their slots in a placement that ignores pins."""
    free = with_machine_sizes(topology).model_copy(update={"pins": {}})
    return _best_attempt(free, hosts, no_lines).slots


def _best_attempt(topology: Topology, hosts: Sequence[HostFacts], line: LineOf) -> _PlacementAttempt:
    """Returns the attempt that places the most trainers, then the most replicas. The usual order of pools is preferred.

    Other orders are tried only if they could place more replicas.
    """
    best = _PlacementAttempt(topology, hosts, line)
    tried = [best.order(_usual_order)]
    best.place_pools(tried[0])
    if best.is_worth_another_try():
        for order_key in (_order_by_spare_choice, _order_by_size):
            other = _PlacementAttempt(topology, hosts, line)
            if (order := other.order(order_key)) in tried or not best.short:
                continue
            tried.append(order)
            other.place_pools(order)
            # If several attempts are equally good, `max` returns the one with the usual order, which keeps chief and
            # workers together.
            best = max(best, other, key=lambda one: one.placed)
    return best


class _PlacementAttempt:
    """One attempt to place a topology: pinned replicas, replicas on their home slots, then the pools in a given order.

    The home slot of a replica is its slot in a placement without pins.
    """

    def __init__(
        self,
        topology: Topology,
        hosts: Sequence[HostFacts],
        line: LineOf,
        homes: Mapping[str, Slot] = MappingProxyType({}),
    ):
        self._topology = topology
        self._hosts = hosts
        self._line = line
        self._capacities = [HostCapacity(host, order) for order, host in enumerate(hosts)]
        self._by_name = {capacity.host.name: capacity for capacity in self._capacities}
        self._homes = homes
        self._free_homes: Counter[tuple[str, str, bool]] = Counter()
        """Number of homes that pinned replicas do not occupy, by host, class and use of GPUs (see `_lane`)."""
        self._home_gpus = {gpu.uuid for slot in homes.values() for gpu in slot.gpus}
        self._names_of_allowed: dict[int, frozenset[str]] = {}
        self.slots: dict[str, Slot] = {}
        self._failed_pins: set[str] = set()
        self._choices: dict[object, float] = {}
        self._problems: list[Problem] = []
        self.short: list[int] = []
        """Positions of the pools that have unplaced replicas."""
        self._replicas = replicas_of(topology)
        self._place_pinned(self._replicas)
        self._stay_at_home()
        settled = {*self.slots, *self._failed_pins}
        self.left: dict[int, list[Replica]] = {}
        """Replicas that `place_pools` has to place, by the position of their pool."""
        for replica in self._replicas:
            if replica.name not in settled:
                self.left.setdefault(replica.pool_index, []).append(replica)

    def order(self, order_key: Callable[[_PlacementAttempt, int], tuple[float, ...]]) -> list[int]:
        """Returns the positions of the pools sorted by `order_key`."""
        return sorted(self.left, key=partial(order_key, self))

    def place_pools(self, order: Sequence[int]) -> None:
        """Places the pools in the given order."""
        self.short = [pool_index for pool_index in order if not self._place_pool(pool_index)]

    @property
    def placed(self) -> tuple[int, int]:
        """The numbers of placed trainers and of all placed replicas, by which attempts are compared."""
        trainers = sum(replica.role.trains and replica.name in self.slots for replica in self._replicas)
        return trainers, len(self.slots)

    def pool(self, pool_index: int) -> Pool:
        return self._topology.pools[pool_index]

    def placement(self) -> Placement:
        self._warn_of_unchecked()
        return Placement(self.slots, tuple(self._problems))

    def is_worth_another_try(self) -> bool:
        """Returns whether another order of the pools might place more replicas.

        This is the case if an unplaced replica would fit on an empty host.
        """
        if len(self.left) < 2:
            return False
        empty = [HostCapacity(host, order) for order, host in enumerate(self._hosts)] if self.short else []
        pools = map(self.pool, self.short)
        return any(capacity.fits(pool) for pool in pools for capacity in self._allowed(pool, empty))

    def choice(self, pool: Pool) -> float:
        """Returns the number of free GPUs that suit a pool, or infinity for a pool without requirements.

        For a pool that reserves only CPUs or memory, it is the number of allowed hosts plus MANY.
        """
        if not pool.gpus and pool.cpus is None and pool.memory_gb is None:
            return inf
        wish = (pool.hosts, tuple(sorted(pool.labels.items())), pool.gpus > 0, pool.gpu_model, pool.gpu_memory_gb)
        if wish not in self._choices:
            allowed = self._allowed(pool, self._capacities)
            gpus = sum(capacity.free_gpus(pool) for capacity in allowed)
            self._choices[wish] = gpus if pool.gpus else MANY + len(allowed)
        return self._choices[wish]

    def workers_take_gpus(self) -> bool:
        return any(pool.gpus for pool in self._topology.pools if pool.role is Role.WORKER)

    def _place_pinned(self, replicas: Sequence[Replica]) -> None:
        choices: list[tuple[Replica, GpuChoice]] = []
        for replica in replicas:
            text = self._topology.pins.get(replica.name)
            if text is None:
                continue
            try:
                choices.append((replica, parse_pin(text)))
            except ValueError as problem:
                self._fail_pin(replica, f"{replica.name} cannot be placed: {problem}")
        # Pins to GPUs are placed before pins to hosts, which could use the same GPUs.
        for replica, choice in sorted(choices, key=lambda pair: not pair[1].indices):
            self._place_pin(replica, choice)

    def _place_pin(self, replica: Replica, choice: GpuChoice) -> None:
        capacity = self._by_name.get(choice.host)
        if capacity is None:
            self._fail_pin(replica, f"{replica.name} is pinned to {choice.host}, which the fleet does not have")
            return
        if not choice.indices:
            if self._took(replica, self._homes.get(replica.name), on=choice.host):
                return
            if capacity.fits(replica.pool):
                self.slots[replica.name] = Slot(
                    capacity.host.name, capacity.take(replica.pool, leaving=self._home_gpus)
                )
            else:
                reason = explain_infeasible([replica.name], replica.pool, [capacity], [capacity])
                self._fail_pin(replica, f"on {choice.host}, where it is pinned, {reason}")
            return
        gpus = tuple(gpu for index in choice.indices if (gpu := capacity.named(index)) is not None)
        if len(gpus) < len(choice.indices):
            found_indices = {gpu.index for gpu in gpus}
            missing = next(index for index in choice.indices if index not in found_indices)
            self._fail_pin(
                replica, f"{replica.name} is pinned to {choice.host}:{missing}, {_why_not_free(capacity.host, missing)}"
            )
            return
        self.slots[replica.name] = Slot(capacity.host.name, capacity.take_these(replica.pool, gpus))

    def _fail_pin(self, replica: Replica, message: str) -> None:
        self._failed_pins.add(replica.name)
        line = self._line(("pins", replica.name))
        self._problems.append(Problem("error", "no-room", message, line, f"pins.{replica.name}"))

    def _stay_at_home(self) -> None:
        """Places replicas that have no pin on their homes.

        If a pinned replica took a replica's GPUs, the replica moves to the home of the pinned replica if it fits there.
        """
        if not self._homes:
            return
        taken_by = {gpu.uuid: name for name, slot in self.slots.items() for gpu in slot.gpus}
        settled = {*self.slots, *self._failed_pins}
        moving = [one for one in self._replicas if one.name not in settled]
        # The chief is placed last, because it stays only on a host that has other trainers, if there are any.
        moving.sort(key=lambda one: one.role is Role.CHIEF)
        self._free_homes = Counter(self._lane(one) for one in self._replicas if one.name in self._homes)
        self._free_homes.subtract(
            self._lane(one, self.slots[one.name]) for one in self._replicas if one.name in self.slots
        )
        displaced = [one for one in moving if not self._stays(one)]
        for replica in displaced:
            home = self._homes.get(replica.name)
            takers = [taken_by[gpu.uuid] for gpu in home.gpus if gpu.uuid in taken_by] if home is not None else []
            for left in takers:
                if self._took(replica, self._homes.get(left)):
                    break

    def _stays(self, replica: Replica) -> bool:
        home = self._homes.get(replica.name)
        if home is None:
            return False
        if replica.role is Role.CHIEF:
            trainers = [capacity.class_counts[TRAINERS] for capacity in self._capacities]
            if any(trainers) and not self._by_name[home.host].class_counts[TRAINERS]:
                return False
        lane = self._lane(replica)
        if not replica.pool.gpus and self._free_homes[lane] < 1:
            return False
        self._free_homes[lane] -= 1
        return self._took(replica, home)

    def _lane(self, replica: Replica, slot: Slot | None = None) -> tuple[str, str, bool]:
        """Returns the host of a slot, the replica's class, and whether the replica has GPUs.

        The slot is by default the replica's home.
        """
        return (slot or self._homes[replica.name]).host, spread_class(replica.role), bool(replica.pool.gpus)

    def _took(self, replica: Replica, slot: Slot | None, on: str = "") -> bool:
        """Places a replica on a slot if the replica fits. Returns whether it was placed.

        If `on` is given, the slot must be on this host.
        """
        if slot is None or len(slot.gpus) != replica.pool.gpus or on not in ("", slot.host):
            return False
        capacity = self._by_name[slot.host]
        gpus = tuple(gpu for one in slot.gpus if (gpu := capacity.named(one.index)) is not None)
        if (
            len(gpus) < len(slot.gpus)
            or not capacity.fits(replica.pool)
            or not all(suits(g, replica.pool) for g in gpus)
        ):
            return False
        if not on and slot.host not in self._allowed_names(replica.pool_index):
            return False
        self.slots[replica.name] = Slot(slot.host, capacity.take_these(replica.pool, gpus))
        return True

    def _allowed_names(self, pool_index: int) -> frozenset[str]:
        if pool_index not in self._names_of_allowed:
            allowed = self._allowed(self.pool(pool_index), self._capacities)
            self._names_of_allowed[pool_index] = frozenset(capacity.host.name for capacity in allowed)
        return self._names_of_allowed[pool_index]

    def _place_pool(self, pool_index: int) -> bool:
        """Places a pool and returns whether all of its replicas were placed."""
        replicas, pool = self.left[pool_index], self.pool(pool_index)
        allowed = self._allowed(pool, self._capacities)
        rule = pool.placement or (PlacementRule.PACK if pool.gpus else PlacementRule.SPREAD)
        if pool.placement is None and not any(capacity.host.checked for capacity in allowed):
            rule = PlacementRule.SPREAD  # Packing requires hosts of known capacity.
        if rule is PlacementRule.PACK:
            capacities = self._packed(pool, allowed, len(replicas))
        else:
            capacities = self._spread(pool, allowed)
        for position, replica in enumerate(replicas):
            capacity = next(capacities, None)
            if capacity is None:
                names = [other.name for other in replicas[position:]]
                message = explain_infeasible(names, pool, self._capacities, allowed) + self._left_out(pool)
                line = self._line(("pools", pool_index))
                step = None if self._capacities else AddHost()
                self._problems.append(Problem("error", "no-room", message, line, f"pools.{pool.name}", next_step=step))
                return False
            self.slots[replica.name] = Slot(capacity.host.name, capacity.take(pool))
        return True

    def _allowed(self, pool: Pool, among: Sequence[HostCapacity]) -> Sequence[HostCapacity]:
        """Returns the hosts that match the pool's `hosts` and `labels`, in the order of `hosts` or the fleet.

        This computer is included only if `hosts` lists it, or the fleet has no remote host.
        """
        capacities: Sequence[HostCapacity] = [one for one in among if one.host.address is not None] or among
        if pool.hosts:
            by_name = {capacity.host.name: capacity for capacity in among}
            capacities = [by_name[name] for name in dict.fromkeys(pool.hosts) if name in by_name]
        wanted = pool.labels.items()
        if not wanted:
            return capacities
        return [one for one in capacities if all(one.host.labels.get(key) == value for key, value in wanted)]

    def _left_out(self, pool: Pool) -> str:
        """Returns a hint if this computer is not used although it has capacity for the pool; otherwise ""."""
        local = [one for one in self._capacities if one.host.address is None]
        if pool.hosts or len(local) == len(self._capacities) or not any(one.fits(pool) for one in local):
            return ""
        name = local[0].host.name
        return f"; {name} is used beside remote hosts only where a pin or the pool's `hosts` name it"

    def _companions(self, pool: Pool) -> int:
        """Returns how many GPUs the chief's host should have left for workers not yet placed; 0 for other pools."""
        if pool.role is not Role.CHIEF:
            return 0
        return sum(
            replica.pool.gpus
            for replicas in self.left.values()
            for replica in replicas
            if replica.role is Role.WORKER and replica.name not in self.slots
        )

    def _packed(self, pool: Pool, allowed: Sequence[HostCapacity], count: int) -> Iterator[HostCapacity]:
        """Yields a host for each of `count` replicas, as long as a host has capacity.

        A host is yielded again while it has capacity.
        """
        companions = self._companions(pool)
        # Sorting is stable, so equal hosts stay in the order of `hosts` or, if there is no such list, of the fleet.
        capacities = sorted(allowed, key=lambda capacity: self._pack_key(capacity, pool, inf))
        most = max((capacity.free_gpus(pool) for capacity in capacities), default=0) if pool.gpus else 0
        current = self._last_of_trainers(allowed) if pool.role is Role.WORKER else None
        if current is not None and not _is_machine_of(current, pool) and _is_machine_of(capacities[0], pool):
            current = None  # Hosts of the pool's machine type take precedence over the host of the other trainers.
        for number in range(count):
            if current is None or not current.fits(pool):
                wanted = (count - number) * pool.gpus + companions
                # A host that lacks capacity for a replica now will not gain any later. If no host has capacity for
                # all remaining replicas, the next host in the list is the best.
                if wanted <= most:
                    capacities = sorted(capacities, key=lambda capacity: self._pack_key(capacity, pool, wanted))
                first = next((at for at, capacity in enumerate(capacities) if capacity.fits(pool)), len(capacities))
                capacities = capacities[first:]
                if not capacities:
                    return
                current = capacities[0]
            yield current

    def _last_of_trainers(self, allowed: Sequence[HostCapacity]) -> HostCapacity | None:
        """Returns the host of the trainer that was placed last, or None if there is none or its host is not allowed."""
        for name in reversed(self.slots):
            if name.startswith((f"{Role.CHIEF}-", f"{Role.WORKER}-")):
                capacity = self._by_name[self.slots[name].host]
                return capacity if capacity in allowed else None
        return None

    def _pack_key(self, capacity: HostCapacity, pool: Pool, wanted: float) -> tuple[float, ...]:
        free = capacity.free_gpus(pool) if pool.gpus else 0.0
        holds_all = free >= wanted
        # A chief whose workers are all placed prefers the host with the most workers.
        joins = capacity.class_counts[TRAINERS] if pool.role is Role.CHIEF and wanted == pool.gpus else 0
        return (
            not _is_machine_of(capacity, pool),
            not capacity.host.checked,
            self._avoids(capacity, pool),
            -joins,
            not holds_all,
            free if holds_all else -free,
            -capacity.class_counts[spread_class(pool.role)],
        )

    def _spread(self, pool: Pool, allowed: Sequence[HostCapacity]) -> Iterator[HostCapacity]:
        """Yields the host of the next replica, until no host has capacity."""

        def key(capacity: HostCapacity) -> tuple[float, ...]:
            counts = capacity.class_counts
            near = -counts[TRAINERS] if pool.role is Role.CHIEF else counts[spread_class(pool.role)]
            other = not _is_machine_of(capacity, pool)
            return (other, self._avoids(capacity, pool), near, capacity.replicas, not capacity.host.checked)

        heap = [(key(capacity), position, capacity) for position, capacity in enumerate(allowed)]
        heapq.heapify(heap)
        while heap:
            _, position, capacity = heap[0]
            if not capacity.fits(pool):
                heapq.heappop(heap)
                continue
            yield capacity
            heapq.heapreplace(heap, (key(capacity), position, capacity))

    def _avoids(self, capacity: HostCapacity, pool: Pool) -> bool:
        """Returns whether a pool avoids a host. Servers and reducers avoid hosts with GPUs."""
        return spread_class(pool.role) == SERVERS and bool(capacity.host.gpus)

    def _warn_of_unchecked(self) -> None:
        used = {slot.host for slot in self.slots.values()}
        for capacity in self._capacities:
            if capacity.host.name in used and not capacity.host.checked:
                name = capacity.host.name
                message = f"{name} {capacity.host.unchecked_reason}; assuming it fits"
                step = DeployAgent(name) if capacity.host.lacks_agent else CheckHosts((name,))
                self._problems.append(
                    Problem("warning", "unchecked-host", message, path=f"hosts.{name}", next_step=step)
                )


def _usual_order(attempt: _PlacementAttempt, pool_index: int) -> tuple[float, ...]:
    """Returns a key that sorts pools by the number of GPUs or hosts that they can use, smallest first."""
    pool = attempt.pool(pool_index)
    after = {Role.WORKER: 1, Role.EVALUATOR: 3, Role.PS: 4, Role.REDUCER: 4}.get(pool.role, 0)
    if pool.role is Role.CHIEF and not pool.gpus and attempt.workers_take_gpus():
        after = 2
    return attempt.choice(pool), after, pool_index


def _order_by_spare_choice(attempt: _PlacementAttempt, pool_index: int) -> tuple[float, ...]:
    """Returns a key that sorts pools by the number of suitable GPUs that they leave free, smallest first."""
    pool = attempt.pool(pool_index)
    share = len(attempt.left[pool_index]) * max(1, pool.gpus)
    return attempt.choice(pool) - share, *_usual_order(attempt, pool_index)


def _order_by_size(attempt: _PlacementAttempt, pool_index: int) -> tuple[float, ...]:
    """Returns a key that sorts pools by the size of their replicas, largest first.

    Small replicas come last, since they fit into the capacity that large replicas leave.
    """
    pool = attempt.pool(pool_index)
    return -pool.gpus, -(pool.cpus or 0), -(pool.memory_gb or 0), *_usual_order(attempt, pool_index)


def _is_machine_of(capacity: HostCapacity, pool: Pool) -> bool:
    """Returns whether a host has the label of the pool's machine type; True for a pool without a type."""
    named = capacity.host.labels.get(MACHINE_LABEL)
    return pool.machine is None or (named is not None and same_machine(named, pool.machine))


def _why_not_free(host: HostFacts, index: int) -> str:
    """Returns the reason why a pinned GPU is not free."""
    gpu = host.gpu_at(index)
    if gpu is None:
        return "which does not exist" if host.checked else "which is taken"
    user = host.user_of(gpu)
    if user is None:
        return "which is taken"
    if not user and (gpu.uuid in host.gpu_bookings or gpu.uuid in host.gpu_exclusions):
        return f"which is {host.why_taken(gpu)}"
    return f"which {user} is using" if user else "which another user is using"

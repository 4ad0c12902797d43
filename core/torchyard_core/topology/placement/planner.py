"""Which replica goes to which host and onto which of its GPUs. Deterministic: the same question, the same answer.

Pins come first, those to GPUs before those to hosts. Then pools by how little there is for them to choose from, so
that those who could go anywhere leave it to them; among equals trainers, then evaluators, then servers and reducers.
Where that leaves somebody out, other turns are tried too, and the answer that places most trainers, then most of all,
is given.

- *pack* stays on a host while it fits; then it takes the smallest host that holds all that is left, else the
  largest. The chief packs together with the workers, so it is near them.
- *spread* goes round the hosts: first the one with the fewest of its kin (trainers; servers and reducers), then
  with the fewest replicas of the run. Pools without GPUs spread unless they say otherwise.
- A chief without GPUs goes where most workers are, once these have their places.
- A machine type stands for its CPUs, memory and GPU model where the pool does not say its own. Hosts with the label
  `machine` of that type come first.
- Servers and reducers go to hosts without GPUs as long as one has room.
- A host that was never checked counts as able; packing takes it after those that are known to be.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf

from torchyard_core.problems import LineOf, Problem, no_lines
from torchyard_core.topology.host_facts import Gpu, HostFacts
from torchyard_core.topology.machine_types import same_machine, with_machine_sizes
from torchyard_core.topology.model import PlacementRule, Pool, Role, Topology
from torchyard_core.topology.placement.capacity import SERVERS, TRAINERS, Room, kin
from torchyard_core.topology.placement.infeasibility import why_not
from torchyard_core.topology.placement.pin_syntax import GpuChoice, parse_pin
from torchyard_core.topology.replicas import Replica, replicas_of

MANY = 1_000_000
"""More GPUs than any fleet has: pools that take GPUs come before pools that take none."""
MACHINE_LABEL = "machine"
"""By which hosts say of what machine type they are."""


@dataclass(frozen=True, slots=True)
class Slot:
    """A replica's host and its GPUs there."""

    host: str
    gpus: tuple[Gpu, ...]


@dataclass(frozen=True)
class Placement:
    """Slots by replica, and why the others have none."""

    slots: Mapping[str, Slot]
    problems: tuple[Problem, ...]


def place(topology: Topology, hosts: Sequence[HostFacts], line: LineOf = no_lines) -> Placement:
    """Gives every replica that fits a host and GPUs. GPUs in a host's `busy_gpus` are left alone."""
    topology = with_machine_sizes(topology)
    best = _Placing(topology, hosts, line)
    tried = [best.order(_usual_turn)]
    best.go(tried[0])
    if best.is_worth_another_try():
        for turn in (_turn_by_what_is_spare, _turn_by_size):
            other = _Placing(topology, hosts, line)
            if (order := other.order(turn)) in tried or not best.short:
                continue
            tried.append(order)
            other.go(order)
            # Of equals the first one stays: the usual turns keep chief and workers together.
            best = max(best, other, key=lambda one: one.placed)
    return best.placement()


class _Placing:
    """One way to place a topology: what is pinned, then pool by pool in some order."""

    def __init__(self, topology: Topology, hosts: Sequence[HostFacts], line: LineOf):
        self._topology = topology
        self._hosts = hosts
        self._line = line
        self._rooms = [Room(host, order) for order, host in enumerate(hosts)]
        self._by_name = {room.host.name: room for room in self._rooms}
        self._slots: dict[str, Slot] = {}
        self._failed_pins: set[str] = set()
        self._choices: dict[object, float] = {}
        self._problems: list[Problem] = []
        self.short: list[int] = []
        """Pools of which not all have a place."""
        self._replicas = replicas_of(topology)
        self._place_pinned(self._replicas)
        settled = {*self._slots, *self._failed_pins}
        self.left: dict[int, list[Replica]] = {}
        """Replicas that are not pinned, by pool."""
        for replica in self._replicas:
            if replica.name not in settled:
                self.left.setdefault(replica.pool_index, []).append(replica)

    def order(self, turn: Callable[[_Placing, int], tuple[float, ...]]) -> list[int]:
        """The pools as their turns come."""
        return sorted(self.left, key=partial(turn, self))

    def go(self, order: Sequence[int]) -> None:
        """Places pool by pool."""
        self.short = [pool_index for pool_index in order if not self._place_pool(pool_index)]

    @property
    def placed(self) -> tuple[int, int]:
        """How good it is: trainers, and all replicas that have a place."""
        trainers = sum(replica.role.trains and replica.name in self._slots for replica in self._replicas)
        return trainers, len(self._slots)

    def pool(self, pool_index: int) -> Pool:
        return self._topology.pools[pool_index]

    def placement(self) -> Placement:
        self._warn_of_unchecked()
        return Placement(self._slots, tuple(self._problems))

    def is_worth_another_try(self) -> bool:
        """Whether somebody was left out who would have fitted, had others not come first."""
        if len(self.left) < 2:
            return False
        empty = [Room(host, order) for order, host in enumerate(self._hosts)] if self.short else []
        pools = map(self.pool, self.short)
        return any(room.fits(pool) for pool in pools for room in self._allowed(pool, empty))

    def choice(self, pool: Pool) -> float:
        """How much there is that would do for a pool: GPUs, or hosts where it sets CPUs or memory aside."""
        if not pool.gpus and pool.cpus is None and pool.memory_gb is None:
            return inf
        wish = (pool.hosts, tuple(sorted(pool.labels.items())), pool.gpus > 0, pool.gpu_model, pool.gpu_memory_gb)
        if wish not in self._choices:
            allowed = self._allowed(pool, self._rooms)
            gpus = sum(room.free_gpus(pool) for room in allowed)
            self._choices[wish] = gpus if pool.gpus else MANY + len(allowed)
        return self._choices[wish]

    def workers_take_gpus(self) -> bool:
        return any(pool.gpus for pool in self._topology.pools if pool.role is Role.WORKER)

    # Pins

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
        # A pin to GPUs must find them free, whatever a pin to the host would take.
        for replica, choice in sorted(choices, key=lambda pair: not pair[1].indices):
            self._place_pin(replica, choice)

    def _place_pin(self, replica: Replica, choice: GpuChoice) -> None:
        room = self._by_name.get(choice.host)
        if room is None:
            self._fail_pin(replica, f"{replica.name} is pinned to {choice.host}, which the fleet does not have")
            return
        if not choice.indices:
            if room.fits(replica.pool):
                self._slots[replica.name] = Slot(room.host.name, room.take(replica.pool))
            else:
                reason = why_not([replica.name], replica.pool, [room], [room])
                self._fail_pin(replica, f"on {choice.host}, where it is pinned, {reason}")
            return
        gpus = tuple(gpu for index in choice.indices if (gpu := room.named(index)) is not None)
        if len(gpus) < len(choice.indices):
            there = {gpu.index for gpu in gpus}
            missing = next(index for index in choice.indices if index not in there)
            self._fail_pin(
                replica, f"{replica.name} is pinned to {choice.host}:{missing}, {_why_not_free(room.host, missing)}"
            )
            return
        self._slots[replica.name] = Slot(room.host.name, room.take_these(replica.pool, gpus))

    def _fail_pin(self, replica: Replica, message: str) -> None:
        self._failed_pins.add(replica.name)
        line = self._line(("pins", replica.name))
        self._problems.append(Problem("error", "no-room", message, line, f"pins.{replica.name}"))

    # Pools

    def _place_pool(self, pool_index: int) -> bool:
        """Whether all of the pool's replicas have a place."""
        replicas, pool = self.left[pool_index], self.pool(pool_index)
        allowed = self._allowed(pool, self._rooms)
        rule = pool.placement or (PlacementRule.PACK if pool.gpus else PlacementRule.SPREAD)
        if pool.placement is None and not any(room.host.checked for room in allowed):
            rule = PlacementRule.SPREAD  # Packing needs to know how much fits.
        if rule is PlacementRule.PACK:
            rooms = self._packed(pool, allowed, len(replicas))
        else:
            rooms = self._spread(pool, allowed)
        for position, replica in enumerate(replicas):
            room = next(rooms, None)
            if room is None:
                names = [other.name for other in replicas[position:]]
                message = why_not(names, pool, self._rooms, allowed)
                line = self._line(("pools", pool_index))
                self._problems.append(Problem("error", "no-room", message, line, f"pools.{pool.name}"))
                return False
            self._slots[replica.name] = Slot(room.host.name, room.take(pool))
        return True

    def _allowed(self, pool: Pool, among: Sequence[Room]) -> Sequence[Room]:
        """Hosts that the pool's `hosts` and `labels` leave, in the order of `hosts`, else of the fleet."""
        rooms = among
        if pool.hosts:
            by_name = {room.host.name: room for room in among}
            rooms = [by_name[name] for name in dict.fromkeys(pool.hosts) if name in by_name]
        wanted = pool.labels.items()
        if not wanted:
            return rooms
        return [room for room in rooms if all(room.host.labels.get(key) == value for key, value in wanted)]

    def _companions(self, pool: Pool) -> int:
        """GPUs of the workers without a place that the chief had better leave room for on its host."""
        if pool.role is not Role.CHIEF:
            return 0
        return sum(
            replica.pool.gpus
            for replicas in self.left.values()
            for replica in replicas
            if replica.role is Role.WORKER and replica.name not in self._slots
        )

    def _packed(self, pool: Pool, allowed: Sequence[Room], count: int) -> Iterator[Room]:
        """A host for each of `count` replicas in turn, as few hosts as can be."""
        companions = self._companions(pool)
        # Of equals the first one comes first: the order of `hosts`, else of the fleet.
        rooms = sorted(allowed, key=lambda room: self._pack_key(room, pool, inf))
        most = max((room.free_gpus(pool) for room in rooms), default=0) if pool.gpus else 0
        current = self._last_of_trainers(allowed) if pool.role is Role.WORKER else None
        if current is not None and not _is_machine_of(current, pool) and _is_machine_of(rooms[0], pool):
            current = None  # There are hosts of the machine type that the pool names.
        for number in range(count):
            if current is None or not current.fits(pool):
                wanted = (count - number) * pool.gpus + companions
                # What has no room for one of them now will have none later; while no host holds all of them, the
                # next in line is the best.
                if wanted <= most:
                    rooms = sorted(rooms, key=lambda room: self._pack_key(room, pool, wanted))
                first = next((at for at, room in enumerate(rooms) if room.fits(pool)), len(rooms))
                rooms = rooms[first:]
                if not rooms:
                    return
                current = rooms[0]
            yield current

    def _last_of_trainers(self, allowed: Sequence[Room]) -> Room | None:
        """The host where the chief, or another pool of workers, went last."""
        for name in reversed(self._slots):
            if name.startswith((f"{Role.CHIEF}-", f"{Role.WORKER}-")):
                room = self._by_name[self._slots[name].host]
                return room if room in allowed else None
        return None

    def _pack_key(self, room: Room, pool: Pool, wanted: float) -> tuple[float, ...]:
        free = room.free_gpus(pool) if pool.gpus else 0.0
        holds_all = free >= wanted
        # A chief whose workers all have their places joins most of them.
        joins = room.kin[TRAINERS] if pool.role is Role.CHIEF and wanted == pool.gpus else 0
        return (
            not _is_machine_of(room, pool),
            not room.host.checked,
            self._shuns(room, pool),
            -joins,
            not holds_all,
            free if holds_all else -free,
            -room.kin[kin(pool.role)],
        )

    def _spread(self, pool: Pool, allowed: Sequence[Room]) -> Iterator[Room]:
        """Hosts in turn, for as long as one has room."""

        def key(room: Room) -> tuple[float, ...]:
            near = -room.kin[TRAINERS] if pool.role is Role.CHIEF else room.kin[kin(pool.role)]
            other = not _is_machine_of(room, pool)
            return (other, self._shuns(room, pool), near, room.replicas, not room.host.checked)

        heap = [(key(room), position, room) for position, room in enumerate(allowed)]
        heapq.heapify(heap)
        while heap:
            _, position, room = heap[0]
            if not room.fits(pool):
                heapq.heappop(heap)
                continue
            yield room
            heapq.heapreplace(heap, (key(room), position, room))

    def _shuns(self, room: Room, pool: Pool) -> bool:
        """Servers and reducers leave hosts with GPUs to those that use them."""
        return kin(pool.role) == SERVERS and bool(room.host.gpus)

    def _warn_of_unchecked(self) -> None:
        used = {slot.host for slot in self._slots.values()}
        for room in self._rooms:
            if room.host.name in used and not room.host.checked:
                known = f"what {room.host.name} has is not known yet, and it counts as able"
                message = f"{known}; see `torchyard hosts check`"
                path = f"hosts.{room.host.name}"
                self._problems.append(Problem("warning", "unchecked-host", message, path=path))


# Turns


def _usual_turn(placing: _Placing, pool_index: int) -> tuple[float, ...]:
    """By how little there is to choose from."""
    pool = placing.pool(pool_index)
    after = {Role.WORKER: 1, Role.EVALUATOR: 3, Role.PS: 4, Role.REDUCER: 4}.get(pool.role, 0)
    if pool.role is Role.CHIEF and not pool.gpus and placing.workers_take_gpus():
        after = 2
    return placing.choice(pool), after, pool_index


def _turn_by_what_is_spare(placing: _Placing, pool_index: int) -> tuple[float, ...]:
    """By how little is left to choose from once the pool has its share."""
    pool = placing.pool(pool_index)
    share = len(placing.left[pool_index]) * max(1, pool.gpus)
    return placing.choice(pool) - share, *_usual_turn(placing, pool_index)


def _turn_by_size(placing: _Placing, pool_index: int) -> tuple[float, ...]:
    """Largest replicas first: what is small finds a place in what they leave."""
    pool = placing.pool(pool_index)
    return -pool.gpus, -(pool.cpus or 0), -(pool.memory_gb or 0), *_usual_turn(placing, pool_index)


def _is_machine_of(room: Room, pool: Pool) -> bool:
    """Whether a host says that it is of the pool's machine type; for a pool without one, any host will do."""
    named = room.host.labels.get(MACHINE_LABEL)
    return pool.machine is None or (named is not None and same_machine(named, pool.machine))


def _why_not_free(host: HostFacts, index: int) -> str:
    """Why a GPU that a pin names cannot be had."""
    gpu = host.gpu_at(index)
    if gpu is None:
        return "which does not exist" if host.checked else "which is taken"
    user = host.user_of(gpu)
    if user is None:
        return "which is taken"
    if not user and gpu.uuid in host.gpu_bookings:
        return f"which is {host.why_taken(gpu)}"
    return f"which {user} is using" if user else "which somebody else is using"

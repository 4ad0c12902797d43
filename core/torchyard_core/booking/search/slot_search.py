"""Search for free slots: "4 GPUs of at least 40 GB on one host for 6 hours, from tomorrow".

The search considers only those gaps between bookings that are long enough. It visits the gaps in the order of their
starts, and keeps the set of GPUs that are free at the same time. A match is found when this set contains enough GPUs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from heapq import heappop, heappush
from itertools import groupby
from operator import attrgetter

from torchyard_core.booking.intervals import Interval
from torchyard_core.booking.model import USUAL_LENGTH, Slot

HORIZON = timedelta(days=90)
"""How far ahead a search looks if the request has no latest end."""
FIRST_LOOK = timedelta(days=7)
Busy = Mapping[str, Sequence[Interval]]


@dataclass(frozen=True)
class Wish:
    """A search request. Empty `gpus` and `hosts` mean any; `latest` is the latest end.

    If `gpus` names slots, the other requirements on slots are ignored, except `one_host`.
    """

    count: int
    length: timedelta
    earliest: datetime
    latest: datetime | None = None
    min_memory_gb: float = 0
    model: str = ""
    one_host: bool = True
    hosts: tuple[str, ...] = ()
    gpus: tuple[str, ...] = ()

    def takes(self, slot: Slot) -> bool:
        """Returns whether the slot meets the requirements, apart from `one_host`.

        CPU slots match only by ID, and nodes of a cluster only by ID or if `hosts` names the cluster.
        """
        if self.gpus:
            return slot.id in self.gpus
        if slot.is_cpu or (slot.host not in self.hosts if self.hosts else slot.node):
            return False
        # GPUs that are sold as "40 GB" have 40960 MB or slightly less, and users enter the nominal size.
        return self.model.lower() in slot.model.lower() and slot.memory_mb >= self.min_memory_gb * 1000 * 0.95


@dataclass(frozen=True)
class Fit:
    """A search result: free GPUs and a time that meet a request. `host` is empty if the GPUs are on several hosts."""

    gpus: tuple[str, ...]
    start: datetime
    end: datetime
    host: str = ""


def used_until(now: datetime) -> datetime:
    """Returns the time until which a GPU that is in use without a booking counts as taken.

    The time is USUAL_LENGTH after the current minute, rounded up to a quarter of an hour.
    """
    end = now.replace(second=0, microsecond=0) + USUAL_LENGTH
    return end + timedelta(minutes=-end.minute % 15)


def find_slots(
    wish: Wish, slots: Sequence[Slot], busy: Busy, limit: int = 5, closed: Sequence[Interval] = ()
) -> tuple[Fit, ...]:
    """Returns the earliest matches, ordered by start. Among equal starts, tight gaps come first.

    A tight gap is one in which little free time would remain after the match. Matches on the same host do not overlap
    in time, so the list offers distinct choices.

    Args:
        busy: Busy intervals of each slot.
        limit: The maximum number of matches.
        closed: Sorted, disjoint intervals in which no match may begin.
    """
    by_host = attrgetter("host")
    wanted = sorted((slot for slot in slots if wish.takes(slot)), key=by_host)
    pools = [(host, list(group)) for host, group in groupby(wanted, key=by_host)] if wish.one_host else [("", wanted)]
    latest = wish.latest or wish.earliest + HORIZON
    found = [
        fit
        for host, pool in pools
        if 0 < wish.count <= len(pool)
        for fit in _fits(wish, host, pool, busy, latest, limit, closed)
    ]
    found.sort(key=lambda one: (one[0].start, one[1], one[0].host))
    return tuple(fit for fit, _ in found[:limit])


def find_with(
    wish: Wish,
    slots: Sequence[Slot],
    busy_in: Callable[[datetime, datetime], Busy],
    limit: int = 5,
    closed: Sequence[Interval] = (),
) -> tuple[Fit, ...]:
    """Returns the same matches as `find_slots`, but loads the busy intervals with `busy_in`.

    At first, only the days after the earliest start are searched. The searched period is extended until there are
    `limit` matches or the latest end is reached.
    """
    last = wish.latest or wish.earliest + HORIZON
    ahead = max(FIRST_LOOK, wish.length * 2)
    while True:
        until = min(last, wish.earliest + ahead)
        bounded = Wish(**{**wish.__dict__, "latest": until})
        found = find_slots(bounded, slots, busy_in(wish.earliest, until), limit, closed)
        if len(found) >= limit or until >= last:
            return found
        ahead *= 12


@dataclass(frozen=True)
class _Opening:
    """A free interval of a GPU."""

    start: datetime
    end: datetime
    slot: Slot


def _fits(
    wish: Wish, host: str, pool: Sequence[Slot], busy: Busy, latest: datetime, limit: int, closed: Sequence[Interval]
) -> list[tuple[Fit, timedelta]]:
    """Returns the matches in one pool of GPUs, each with the total free time on its GPUs after the match."""
    openings = sorted(
        (opening for slot in pool for opening in _openings(slot, busy.get(slot.id, ()), wish, latest)),
        key=lambda opening: (opening.start, opening.slot.sort_key()),
    )
    open_now: dict[str, _Opening] = {}
    ending: list[tuple[datetime, int, _Opening]] = []
    fits: list[tuple[Fit, timedelta]] = []
    not_before = wish.earliest
    for number, opening in enumerate(openings):
        heappush(ending, (opening.end, number, opening))
        open_now[opening.slot.id] = opening
        following = openings[number + 1].start if number + 1 < len(openings) else None
        # The number of free GPUs cannot increase before the next opening begins. Matches are therefore tried one
        # directly after the other up to that time.
        begin = _first_open(max(opening.start, not_before), closed)
        while following is None or begin < following:
            while ending and ending[0][0] < begin + wish.length:
                gone = heappop(ending)[2]
                if open_now.get(gone.slot.id) is gone:
                    del open_now[gone.slot.id]
            if len(open_now) < wish.count:
                break
            chosen, spare = _choose(wish, list(open_now.values()), begin)
            fits.append(
                (Fit(tuple(sorted(slot.id for slot in chosen)), begin, begin + wish.length, _host(host, chosen)), spare)
            )
            if len(fits) >= limit:
                return fits
            not_before = begin = _first_open(begin + wish.length, closed)
    return fits


def _first_open(start: datetime, closed: Sequence[Interval]) -> datetime:
    """Returns the first time at or after `start` that is outside `closed`.

    A time other than `start` is rounded up to a full minute.
    """
    for interval in closed:
        if interval.start <= start < interval.end:
            start = interval.end + timedelta(seconds=-interval.end.second % 60)
    return start


def _openings(slot: Slot, taken: Sequence[Interval], wish: Wish, latest: datetime) -> list[_Opening]:
    openings: list[_Opening] = []
    start = wish.earliest
    for interval in sorted(taken, key=lambda one: one.start):
        if interval.start - start >= wish.length:
            openings.append(_Opening(start, min(interval.start, latest), slot))
        start = max(start, interval.end)
        if start + wish.length > latest:
            break
    if latest - start >= wish.length:
        openings.append(_Opening(start, latest, slot))
    return [opening for opening in openings if opening.end - opening.start >= wish.length]


def _choose(wish: Wish, candidates: list[_Opening], begin: datetime) -> tuple[list[Slot], timedelta]:
    """Returns GPUs of the hosts with the most free GPUs, and the sum of their free times after the match.

    On the same host, GPUs with the least remaining time are preferred.
    """
    on_host: dict[str, int] = {}
    for candidate in candidates:
        on_host[candidate.slot.host] = on_host.get(candidate.slot.host, 0) + 1

    def spare(one: _Opening) -> timedelta:
        return one.end - max(one.start, begin) - wish.length

    candidates.sort(key=lambda one: (-on_host[one.slot.host], one.slot.host, spare(one), one.slot.sort_key()))
    chosen = candidates[: wish.count]
    return [one.slot for one in chosen], sum((spare(one) for one in chosen), timedelta())


def _host(pool: str, chosen: Sequence[Slot]) -> str:
    hosts = {slot.host for slot in chosen}
    return pool or (hosts.pop() if len(hosts) == 1 else "")

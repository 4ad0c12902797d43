"""Blocks of the calendar: the adjacent lanes of a booking form one block. Does not depend on Qt."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from operator import attrgetter

from torchyard_core.booking.intervals import Interval, gaps, merge, subtract
from torchyard_core.booking.model import Booking, IdleEvidence, Slot, State, Use
from torchyard_gui.bookings.calendar.lanes import Lanes, Row

BAR = 8
"""Height in pixels, including margins, of a bar at the lower edge of a lane."""
LEAST_HELD = timedelta(minutes=1)
SHORTEST_SHOWN = timedelta(minutes=5)
"""Minimum duration of idle time, and of use without a booking, that is shown. Shorter intervals occur whenever
programs start or stop.
"""


@dataclass(frozen=True)
class Block:
    """Part of a booking on adjacent lanes, from the top of the first lane to the bottom of the last."""

    booking: Booking
    slots: tuple[Slot, ...]
    top: int
    bottom: int
    start: float
    """Start of the booking. This time and all other drawn times are in seconds since 1970."""
    end: float

    @property
    def is_bar(self) -> bool:
        """Whether the block is a bar at the lower edge of a lane. A bar has no label."""
        return self.bottom - self.top == BAR


def is_shown(booking: Booking) -> bool:
    """Returns whether a booking is shown.

    Bookings that were cancelled, or released within `LEAST_HELD`, are not shown.
    """
    return booking.is_live or (booking.state is not State.CANCELLED and booking.duration >= LEAST_HELD)


def blocks_of(booking: Booking, lanes: Lanes, *, as_bars: bool = False) -> list[Block]:
    """Returns the blocks of a booking, from top to bottom. With `as_bars`, each lane has its own block, a bar."""
    if not is_shown(booking):
        return []
    blocks: list[Block] = []
    rows = sorted((lanes.lane_of[gpu] for gpu in booking.gpus if gpu in lanes.lane_of), key=lambda row: row.top)
    if as_bars:
        return [replace(_block(booking, [row]), top=row.bottom - BAR) for row in rows]
    group: list[Row] = []
    for row in rows:
        if group and row.top != group[-1].bottom:
            blocks.append(_block(booking, group))
            group = []
        group.append(row)
    if group:
        blocks.append(_block(booking, group))
    return blocks


def _block(booking: Booking, rows: Sequence[Row]) -> Block:
    start, end = booking.start.timestamp(), booking.until.timestamp()
    return Block(booking, tuple(row.slots[0] for row in rows), rows[0].top, rows[-1].bottom, start, end)


def steps(booked: Iterable[Interval]) -> tuple[tuple[Interval, int], ...]:
    """Returns how many slots of a folded host are booked over time, as (interval, count).

    Intervals in which no slot is booked are left out.

    Args:
        booked: The booked intervals of all of the host's slots.
    """
    changes: dict[datetime, int] = defaultdict(int)
    for interval in booked:
        changes[interval.start] += 1
        changes[interval.end] -= 1
    found: list[tuple[Interval, int]] = []
    level, since = 0, None
    for moment in sorted(changes):
        if changes[moment] and since is not None and level:
            found.append((Interval(since, moment), level))
        if changes[moment]:
            level += changes[moment]
            since = moment
    return tuple(found)


def free_now(
    slots: Iterable[Slot], bookings: Iterable[Booking], in_use: Collection[str], now: datetime
) -> tuple[int, int]:
    """Returns how many GPUs are neither booked nor in use now, and the number of all GPUs.

    CPU slots are not counted.
    """
    booked = {gpu for one in bookings if one.is_running(now) for gpu in one.gpus}
    gpus = [slot.id for slot in slots if not slot.is_cpu and not slot.node]
    return sum(gpu not in booked and gpu not in in_use for gpu in gpus), len(gpus)


@dataclass(frozen=True)
class Usage:
    """The measured use of GPUs, for comparison with the bookings."""

    used: Mapping[str, Sequence[Interval]]
    """For each GPU, the intervals in which it was in use, merged."""
    unbooked: Mapping[str, Sequence[Interval]]
    """For each GPU, the intervals in which it was in use without a booking."""
    idle: Mapping[str, Sequence[Interval]]
    """For each booking, the observed intervals in which none of its GPUs was in use."""


class UsageBuilder:
    """Computes `Usage` incrementally.

    As long as the usage records do not change, only changed bookings and current bookings are compared with the
    records.

    Agents do not observe hosts all the time, and time without observation does not count as idle. The idle time of a
    booking is:

    - its whole past time, if it was released as unused (`NO_SHOW`); otherwise
    - the time that an agent reports as idle, and
    - the time in which none of its GPUs was in use, between the first and the last observed use on one of its hosts.
    """

    def __init__(self) -> None:
        self._uses: Sequence[Use] | None = None
        self._used: dict[str, list[Interval]] = {}
        self._host_of: dict[str, str] = {}
        self._watched: dict[str, Interval] = {}
        self._bookings: dict[str, Booking] = {}
        self._booked: dict[str, dict[str, Interval]] = defaultdict(dict)
        self._evidence: dict[str, Interval] = {}
        self._now: datetime | None = None
        self._unbooked: dict[str, list[Interval]] = {}
        self._idle: dict[str, list[Interval]] = {}

    @property
    def booked(self) -> Mapping[str, Mapping[str, Interval]]:
        """The times of the shown bookings, by slot and booking ID."""
        return self._booked

    def of(
        self,
        uses: Sequence[Use],
        come: Iterable[Booking],
        gone: Iterable[Booking],
        evidence: Iterable[IdleEvidence],
        now: datetime,
    ) -> Usage:
        """Returns the usage for the current bookings.

        Args:
            come: Bookings added since the last call.
            gone: Bookings removed since the last call.
        """
        is_new = uses is not self._uses
        if is_new:
            self._take_uses(uses)
        come = [booking for booking in come if is_shown(booking)]
        gpus = self._move(come, gone)
        for gpu in self._used if is_new else gpus & self._used.keys():
            self._unbooked.pop(gpu, None)
            if times := _long(subtract(self._used[gpu], self._booked[gpu].values())):
                self._unbooked[gpu] = times
        seen_idle = {one.booking_id: Interval(one.idle_since, one.seen_at) for one in evidence}
        changed = {booking.id for booking in come} | {name for name, _ in seen_idle.items() ^ self._evidence.items()}
        since, until = min(self._now or now, now), max(self._now or now, now)
        changed |= {one.id for one in self._bookings.values() if one.start < until and one.end > since}
        self._evidence, self._now = seen_idle, now
        for name in self._bookings if is_new else changed & self._bookings.keys():
            self._idle.pop(name, None)
            if times := self._idle_of(self._bookings[name], now):
                self._idle[name] = times
        return Usage(self._used, dict(self._unbooked), dict(self._idle))

    def _take_uses(self, uses: Sequence[Use]) -> None:
        by_gpu: dict[str, list[Interval]] = defaultdict(list)
        self._uses, self._host_of, self._watched, self._unbooked = uses, {}, {}, {}
        for use in uses:
            by_gpu[use.gpu].append(use.interval)
            self._host_of[use.gpu] = use.host
            known = self._watched.get(use.host, use.interval)
            self._watched[use.host] = Interval(min(known.start, use.start), max(known.end, use.end))
        self._used = {gpu: merge(times) for gpu, times in by_gpu.items()}

    def _move(self, come: Iterable[Booking], gone: Iterable[Booking]) -> set[str]:
        """Updates the bookings and the index of bookings by GPU. Returns the GPUs whose bookings have changed."""
        gpus: set[str] = set()
        for booking in gone:
            self._bookings.pop(booking.id, None)
            self._idle.pop(booking.id, None)
            for gpu in booking.gpus:
                self._booked[gpu].pop(booking.id, None)
            gpus.update(booking.gpus)
        for booking in come:
            self._bookings[booking.id] = booking
            for gpu in booking.gpus:
                self._booked[gpu][booking.id] = booking.interval
            gpus.update(booking.gpus)
        return gpus

    def _idle_of(self, booking: Booking, now: datetime) -> list[Interval]:
        if booking.start >= now:
            return []
        past = Interval(booking.start, min(booking.until, now))
        if booking.state is State.NO_SHOW:
            return [past]
        hosts = {self._host_of[gpu] for gpu in booking.gpus if gpu in self._host_of}
        busy = [interval for gpu in booking.gpus for interval in touching(past, self._used.get(gpu, ()))]
        found = [gap for host in hosts for gap in gaps(past.within(self._watched[host]), busy)]
        if booking.id in self._evidence:
            found.append(self._evidence[booking.id].within(past))
        return merge(_long(found))


def touching(within: Interval, times: Sequence[Interval]) -> Sequence[Interval]:
    """Returns the intervals that touch `within`, and possibly one interval before them. `times` must be sorted and
    disjoint.
    """
    first = bisect_right(times, within.start, key=_start)
    return times[max(first - 1, 0) : bisect_right(times, within.end, key=_start)]


_start = attrgetter("start")


def _long(times: Iterable[Interval]) -> list[Interval]:
    return [interval for interval in times if interval.duration >= SHORTEST_SHOWN]


def strip_of(block: Block, used: Mapping[str, Sequence[Interval]]) -> tuple[tuple[float, float, float], ...]:
    """Returns the use of the block's lanes over time, as (start, end, fraction of the lanes in use).

    Intervals in which no lane is in use are omitted.
    """
    changes: dict[float, int] = defaultdict(int)
    for slot in block.slots:
        for interval in touching(block.booking.interval, used.get(slot.id, ())):
            start, end = max(interval.start.timestamp(), block.start), min(interval.end.timestamp(), block.end)
            if end > start:
                changes[start] += 1
                changes[end] -= 1
    found: list[tuple[float, float, float]] = []
    level, since = 0, 0.0
    for second in sorted(changes):
        if level:
            found.append((since, second, level / len(block.slots)))
        level += changes[second]
        since = second
    return tuple(found)

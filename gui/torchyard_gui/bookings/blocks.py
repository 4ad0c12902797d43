"""What bookings look like in the lanes: adjacent lanes of one booking are one block. No Qt."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from operator import attrgetter
from zlib import crc32

from torchyard_core.booking.intervals import Interval, gaps, merge, subtract
from torchyard_core.booking.model import Booking, IdleEvidence, Slot, State, Use
from torchyard_gui.bookings.lanes import Lanes, Row

HUES = 5
SHORTEST_SHOWN = timedelta(minutes=5)
"""Idle, or used without a booking: what is shorter is the noise of starting and stopping."""


@dataclass(frozen=True)
class Block:
    """A booking on neighbouring lanes. `top` and `bottom` are the lanes' own."""

    booking: Booking
    slots: tuple[Slot, ...]
    top: int
    bottom: int
    start: float
    """Seconds since 1970, as all that is drawn."""
    end: float


def is_shown(booking: Booking) -> bool:
    """One that was cancelled before it began took nothing from anybody."""
    return booking.state is not State.CANCELLED and booking.until > booking.start


def blocks_of(bookings: Iterable[Booking], lanes: Lanes) -> tuple[Block, ...]:
    """The blocks of all bookings, from the top down."""
    blocks: list[Block] = []
    for booking in bookings:
        if not is_shown(booking):
            continue
        rows = sorted((lanes.lane_of[gpu] for gpu in booking.gpus if gpu in lanes.lane_of), key=lambda row: row.top)
        group: list[Row] = []
        for row in rows:
            if group and row.top != group[-1].bottom:
                blocks.append(_block(booking, group))
                group = []
            group.append(row)
        if group:
            blocks.append(_block(booking, group))
    return tuple(sorted(blocks, key=lambda block: (block.top, block.start)))


def _block(booking: Booking, rows: Sequence[Row]) -> Block:
    start, end = booking.start.timestamp(), booking.until.timestamp()
    return Block(booking, tuple(row.slots[0] for row in rows), rows[0].top, rows[-1].bottom, start, end)


def hue_of(person: str) -> int:
    """One of five colours; the same on every desktop."""
    return crc32(person.encode(), 55) % HUES


def steps(slots: Iterable[Slot], bookings: Iterable[Booking]) -> tuple[tuple[Interval, int], ...]:
    """How many of a folded host's slots are booked, for each time in which that is one number above 0."""
    own = {slot.id for slot in slots}
    changes: dict[datetime, int] = defaultdict(int)
    for booking in bookings:
        count = sum(gpu in own for gpu in booking.gpus)
        if count and is_shown(booking):
            changes[booking.start] += count
            changes[booking.until] -= count
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
    """How many GPUs nobody has booked nor uses now, and how many there are. CPU slots are no GPUs."""
    booked = {gpu for booking in bookings if booking.is_running(now) for gpu in booking.gpus}
    gpus = [slot.id for slot in slots if not slot.is_cpu]
    return sum(gpu not in booked and gpu not in in_use for gpu in gpus), len(gpus)


@dataclass(frozen=True)
class Usage:
    """Actual use, laid beside the bookings."""

    used: Mapping[str, Sequence[Interval]]
    """By GPU, merged."""
    unbooked: Mapping[str, Sequence[Interval]]
    """By GPU: in use, and booked by nobody."""
    idle: Mapping[str, Sequence[Interval]]
    """By booking: its time in which none of its GPUs was in use, as far as somebody looked."""


def usage_of(
    uses: Iterable[Use], bookings: Sequence[Booking], evidence: Iterable[IdleEvidence], now: datetime
) -> Usage:
    """Sorts out who used what.

    Nobody looks all the time, and what nobody saw is not idle. So idle is: what an agent reports as idle, the whole of
    a booking that was never used, and gaps between two uses that were seen on the same host.
    """
    by_gpu: dict[str, list[Interval]] = defaultdict(list)
    host_of: dict[str, str] = {}
    watched: dict[str, Interval] = {}
    for use in uses:
        by_gpu[use.gpu].append(use.interval)
        host_of[use.gpu] = use.host
        known = watched.get(use.host, use.interval)
        watched[use.host] = Interval(min(known.start, use.start), max(known.end, use.end))
    used = {gpu: merge(times) for gpu, times in by_gpu.items()}
    booked: dict[str, list[Interval]] = defaultdict(list)
    for booking in bookings:
        if is_shown(booking):
            for gpu in booking.gpus:
                booked[gpu].append(booking.interval)
    unbooked = {gpu: _long(subtract(times, booked.get(gpu, ()))) for gpu, times in used.items()}
    seen_idle = {one.booking_id: Interval(one.idle_since, one.seen_at) for one in evidence}
    idle: dict[str, Sequence[Interval]] = {}
    for booking in bookings:
        if booking.start >= now or not is_shown(booking):
            continue
        past = Interval(booking.start, min(booking.until, now))
        if booking.state is State.NO_SHOW:
            idle[booking.id] = [past]
            continue
        own_hosts = {host_of[gpu] for gpu in booking.gpus if gpu in host_of}
        busy = [interval for gpu in booking.gpus for interval in touching(past, used.get(gpu, ()))]
        found = [gap for host in own_hosts for gap in gaps(past.within(watched[host]), busy)]
        if booking.id in seen_idle:
            found.append(seen_idle[booking.id].within(past))
        if times := _long(found):
            idle[booking.id] = merge(times)
    return Usage(used, {gpu: times for gpu, times in unbooked.items() if times}, idle)


def touching(within: Interval, times: Sequence[Interval]) -> Sequence[Interval]:
    """Those of `times`, sorted and apart from each other, that touch `within`."""
    first = bisect_right(times, within.start, key=_start)
    return times[max(first - 1, 0) : bisect_right(times, within.end, key=_start)]


_start = attrgetter("start")


def _long(times: Iterable[Interval]) -> list[Interval]:
    return [interval for interval in times if interval.duration >= SHORTEST_SHOWN]


def strip_of(block: Block, used: Mapping[str, Sequence[Interval]]) -> tuple[tuple[float, float, float], ...]:
    """When the block's lanes were in use, and what share of them: (start, end, share above 0)."""
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

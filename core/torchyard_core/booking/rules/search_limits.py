"""Applies the horizon, the open times and the quota to a search.

Times at which GPUs are closed to the person count as busy, and no match begins at a time at which its booking would
exceed the quota.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import pairwise

from torchyard_core.booking.intervals import Interval, merge
from torchyard_core.booking.model import Slot, whole_seconds
from torchyard_core.booking.rules.open_times import Window, binding_windows, outside
from torchyard_core.booking.rules.quota import charged
from torchyard_core.booking.rules.team_rules import Rules
from torchyard_core.booking.search.slot_search import HORIZON, Busy, Fit, Wish, find_slots
from torchyard_core.booking.zone_weeks import by_week, day_of

LONGEST_SEARCH = timedelta(days=366)
"""Maximum range of a search from the current time if no rule limits it."""
JUST_NOW = timedelta(seconds=10)
"""How far in the past a search may begin, since processing a request takes time. A search from an earlier start begins
at the current time.
"""
SECOND = timedelta(seconds=1)
EXACT_S = 1e-3
"""Tolerance of a quota in seconds, since GPU-hours are floating-point numbers."""


@dataclass(frozen=True)
class Allowance:
    """The values for a quota check.

    `hours` maps the start of each week to the person's GPU-hours, and `zone` is the time zone for times in refusals.
    Weeks and days refer to the zone in the rules.
    """

    hours: Mapping[datetime, float]
    now: datetime
    zone: str


def within_rules(wish: Wish, rules: Rules, now: datetime) -> Wish:
    """Returns the search request, limited to the time that the rules allow.

    The search begins at most JUST_NOW in the past, and ends no later than the horizon that the rules set.
    """
    earliest = now if wish.earliest < now - JUST_NOW else wish.earliest
    ahead = LONGEST_SEARCH if rules.furthest_days is None else timedelta(days=rules.furthest_days)
    latest = min(wish.latest or earliest + HORIZON, now + ahead)
    return replace(wish, earliest=earliest, latest=latest)


def taken_or_closed(busy: Busy, slots: Iterable[Slot], within: Interval, rules: Rules, person: str) -> Busy:
    """Returns, by slot ID, the intervals during which a GPU is busy or closed to the person."""
    if not rules.windows or within.is_empty:
        return busy
    closed: dict[tuple[Window, ...], list[Interval]] = {}
    both = dict(busy)
    for slot in slots:
        binding = tuple(binding_windows(slot, rules, person))
        if not binding:
            continue
        if binding not in closed:  # Slots with the same windows share one computation.
            closed[binding] = outside(within, binding)
        both[slot.id] = [*busy.get(slot.id, ()), *closed[binding]]
    return both


def closed_starts(wish: Wish, slots: Iterable[Slot], rules: Rules, person: str, allowance: Allowance) -> list[Interval]:
    """Returns the ranges of start times, in whole seconds, for which the requested booking would exceed the quota.

    The time that a booking occupies in a week is a piecewise linear function of its start. Its breakpoints occur where
    the start or end of the booking coincides with the start or end of a week or of the current day, so the function is
    evaluated only there, and at the first and the last start.
    """
    limit = rules.quota_of(person)
    gpus = min(wish.count, sum(not slot.is_cpu for slot in slots if wish.takes(slot)))
    if limit is None or not gpus:
        return []
    first = whole_seconds(wish.earliest) - SECOND
    last = (wish.latest or wish.earliest + HORIZON) - wish.length + SECOND
    today = day_of(allowance.now, rules.zone)
    weeks = by_week(Interval(first, last + wish.length), rules.zone)
    edges = [*weeks, today.start, today.end]
    meeting = {edge - shift for edge in edges for shift in (timedelta(), wish.length)}
    starts = sorted({first, last, *(start for start in meeting if first < start < last)})
    taken = [charged(Interval(one, one + wish.length), rules, allowance.now) for one in starts]
    closed: list[Interval] = []
    for week in weeks:
        room = max(limit - allowance.hours.get(week, 0.0), 0.0) * 3600 / gpus + EXACT_S
        over = [seconds.get(week, 0.0) - room for seconds in taken]
        closed += _above(list(zip(starts, over, strict=True)))
    return merge(closed)


def _above(line: Sequence[tuple[datetime, float]]) -> Iterator[Interval]:
    """Yields the intervals, in whole seconds, in which the piecewise linear function through the points is positive."""
    for (begin, before), (end, after) in pairwise(line):
        if before > 0 and after > 0:
            yield Interval(begin, end)
        elif before > 0 or after > 0:
            meets = whole_seconds(begin + (end - begin) * (before / (before - after))) + SECOND
            yield Interval(begin, meets) if before > 0 else Interval(meets, end)


def nothing_taken(
    wish: Wish, slots: Sequence[Slot], rules: Rules, person: str, allowance: Allowance
) -> tuple[Fit, ...]:
    """Returns the first match that the rules would allow in an empty calendar, or an empty tuple if there is none."""
    open_until = Interval(wish.earliest, wish.latest or wish.earliest + HORIZON)
    closed = taken_or_closed({}, slots, open_until, rules, person)
    return find_slots(wish, slots, closed, 1, closed_starts(wish, slots, rules, person, allowance))

"""Tests of interval arithmetic, by comparison with sets of minutes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as some

from torchyard_core.booking.intervals import Interval, gaps, merge, subtract, total
from torchyard_core.booking.model import Slot
from torchyard_core.booking.search.slot_search import Wish, find_slots

BEGIN = datetime(2031, 3, 29, 22, 0, tzinfo=UTC)
LENGTH = 90
MINUTE = timedelta(minutes=1)


def at(minute: int) -> datetime:
    return BEGIN + minute * MINUTE


def interval(start: int, end: int) -> Interval:
    return Interval(at(start), at(end))


def minutes(*intervals: Interval) -> set[int]:
    """Returns all minutes that begin within one of the intervals."""
    return {minute for minute in range(LENGTH) if any(one.start <= at(minute) < one.end for one in intervals)}


points = some.integers(0, LENGTH)
any_interval = some.builds(interval, points, points)
many = some.lists(any_interval, max_size=8)


@given(any_interval, any_interval)
def test_the_intersection_of_two_holds_the_minutes_that_they_share(one, other):
    assert minutes(one.within(other)) == minutes(one) & minutes(other)


@given(many)
def test_merged_are_the_same_minutes_sorted_and_apart(intervals):
    merged = merge(intervals)
    assert minutes(*merged) == minutes(*intervals)
    assert all(one.end < other.start for one, other in pairwise(merged))
    assert total(intervals) == len(minutes(*intervals)) * MINUTE


@given(many, many)
def test_differences_are_those_of_sets(ones, others):
    assert minutes(*subtract(ones, others)) == minutes(*ones) - minutes(*others)
    assert all(not one.is_empty for one in subtract(ones, others))


@given(any_interval, many)
def test_gaps_are_what_is_left(within, busy):
    assert minutes(*gaps(within, busy)) == minutes(within) - minutes(*busy)


SLOTS = [Slot(f"GPU-{host}{number}", host, number, "A100", 81920) for host in "ab" for number in range(3)]


@given(
    some.fixed_dictionaries({slot.id: many for slot in SLOTS}),
    some.integers(1, 4),
    some.integers(1, 40),
    some.integers(0, 50),
    some.booleans(),
)
@settings(deadline=None)
def test_the_first_fit_is_the_first_minute_at_which_enough_gpus_are_free(busy, count, length, earliest, one_host):
    wish = Wish(count, length * MINUTE, at(earliest), latest=at(LENGTH), one_host=one_host)
    taken = {gpu: [one for one in intervals if not one.is_empty] for gpu, intervals in busy.items()}
    fits = find_slots(wish, SLOTS, taken)

    def free(slot: Slot, start: int) -> bool:
        return not minutes(*taken[slot.id]) & set(range(start, start + length))

    def enough(start: int) -> bool:
        by_host = {host: sum(free(slot, start) for slot in SLOTS if slot.host == host) for host in "ab"}
        return max(by_host.values()) >= count if one_host else sum(by_host.values()) >= count

    expected = next((start for start in range(earliest, LENGTH - length + 1) if enough(start)), None)
    assert (fits[0].start if fits else None) == (None if expected is None else at(expected))
    hosts = {slot.id: slot.host for slot in SLOTS}
    for fit in fits:
        assert len(set(fit.gpus)) == count
        assert fit.end - fit.start == wish.length
        assert at(earliest) <= fit.start
        assert fit.end <= at(LENGTH)
        assert all(Interval(fit.start, fit.end).within(one).is_empty for gpu in fit.gpus for one in taken[gpu])
        assert not one_host or {hosts[gpu] for gpu in fit.gpus} == {fit.host}
    assert len(set(fits)) == len(fits) <= 5
    assert [fit.start for fit in fits] == sorted(fit.start for fit in fits)

"""Arithmetic of half-open intervals of time, `[start, end)`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta


@dataclass(frozen=True, order=True)
class Interval:
    """The time from `start` (included) to `end` (excluded). It is empty if `end` is not after `start`."""

    start: datetime
    end: datetime

    @property
    def is_empty(self) -> bool:
        return self.end <= self.start

    @property
    def duration(self) -> timedelta:
        return max(self.end - self.start, timedelta())

    def contains(self, moment: datetime) -> bool:
        return self.start <= moment < self.end

    def within(self, other: Interval) -> Interval:
        """Returns the intersection with `other`, which may be empty."""
        return Interval(max(self.start, other.start), min(self.end, other.end))


def merge(intervals: Iterable[Interval]) -> list[Interval]:
    """Returns the union as sorted, disjoint intervals. Adjacent intervals are joined."""
    merged: list[Interval] = []
    for interval in sorted(interval for interval in intervals if not interval.is_empty):
        if merged and interval.start <= merged[-1].end:
            if interval.end > merged[-1].end:
                merged[-1] = Interval(merged[-1].start, interval.end)
        else:
            merged.append(interval)
    return merged


def subtract(intervals: Iterable[Interval], holes: Iterable[Interval]) -> list[Interval]:
    """Returns the parts of `intervals` outside all `holes`."""
    left: list[Interval] = []
    away = merge(holes)
    first = 0
    for interval in merge(intervals):
        start = interval.start
        while first < len(away) and away[first].end <= start:
            first += 1
        index = first
        while index < len(away) and away[index].start < interval.end:
            if away[index].start > start:
                left.append(Interval(start, away[index].start))
            start = max(start, away[index].end)
            index += 1
        if start < interval.end:
            left.append(Interval(start, interval.end))
    return left


def gaps(within: Interval, busy: Iterable[Interval]) -> list[Interval]:
    """Returns the parts of `within` outside all `busy` intervals."""
    return subtract([within], busy)


def total(intervals: Iterable[Interval]) -> timedelta:
    """Returns the total duration of the intervals. Time in several intervals counts once."""
    return sum((interval.duration for interval in merge(intervals)), timedelta())

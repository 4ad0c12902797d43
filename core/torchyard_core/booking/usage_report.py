"""Usage report: booked, used and idle GPU-hours by person, host or week."""

from __future__ import annotations

import csv
import io
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, get_args

from torchyard_core.booking.intervals import Interval, merge, subtract, total
from torchyard_core.booking.model import Booking, Slot, State, Use, is_cpu_id
from torchyard_core.booking.time_parser import zone_of
from torchyard_core.booking.zone_weeks import by_week
from torchyard_core.errors import UsageError

By = Literal["person", "host", "week"]
Parts = Mapping[tuple[str, str], list[Interval]]
"""Intervals by (person, GPU)."""


@dataclass(frozen=True)
class UsageRow:
    """GPU-hours of one person, host or week. A week is identified by the date of its Monday."""

    key: str
    booked_h: float
    used_h: float
    """GPU-hours of use, whether booked or not."""
    idle_h: float
    """GPU-hours in the past that were booked but not used."""
    unbooked_h: float
    """GPU-hours of use by a person who had not booked the GPU for that time."""


def usage(
    bookings: Iterable[Booking],
    uses: Iterable[Use],
    slots: Sequence[Slot],
    since: datetime,
    until: datetime,
    now: datetime,
    by: By = "person",
    zone: str = "UTC",
) -> tuple[UsageRow, ...]:
    """Returns the rows of the report, sorted by key.

    Bookings are counted up to their release. Future time is reported as booked, not as idle. Use of a GPU during
    another person's booking is reported as unbooked. CPU slots are not counted.
    """
    if by not in get_args(By):
        raise UsageError(f"usage is shown by {', '.join(get_args(By))}, not by `{by}`", code="wrong_value")
    within = Interval(since, until)
    booked = _gathered(
        (booking.owner, gpu, booking.interval.within(within))
        for booking in bookings
        if booking.state is not State.CANCELLED or booking.duration
        for gpu in booking.gpus
    )
    used = _gathered((use.person or "?", use.gpu, use.interval.within(within)) for use in uses)
    used_on: dict[str, list[Interval]] = defaultdict(list)
    for (_, gpu), times in used.items():
        used_on[gpu] += times
    to_come = [Interval(now, until)]
    idle = {key: subtract(times, [*used_on[key[1]], *to_come]) for key, times in booked.items()}
    unbooked = {key: subtract(times, booked.get(key, [])) for key, times in used.items()}
    hosts = {slot.id: slot.host for slot in slots}
    columns = [_hours(parts, by, hosts, zone) for parts in (booked, used, idle, unbooked)]
    keys = sorted({key for column in columns for key in column})
    return tuple(UsageRow(key, *(round(column.get(key, 0.0), 6) for column in columns)) for key in keys)


def to_csv(rows: Iterable[UsageRow], by: By) -> str:
    """Formats rows as CSV (RFC 4180) with a header; hours have two decimals."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow([by, "booked_gpu_hours", "used_gpu_hours", "idle_gpu_hours", "unbooked_gpu_hours"])
    for row in rows:
        hours = (row.booked_h, row.used_h, row.idle_h, row.unbooked_h)
        writer.writerow([_harmless(row.key), *(f"{value:.2f}" for value in hours)])
    return text.getvalue()


def _harmless(word: str) -> str:
    """Puts an apostrophe before text that a spreadsheet would execute as a formula."""
    return f"'{word}" if word.startswith(("=", "+", "-", "@", "\t")) else word


def _gathered(found: Iterable[tuple[str, str, Interval]]) -> dict[tuple[str, str], list[Interval]]:
    parts: dict[tuple[str, str], list[Interval]] = defaultdict(list)
    for person, gpu, interval in found:
        if not interval.is_empty and not is_cpu_id(gpu):
            parts[person, gpu].append(interval)
    return {key: merge(times) for key, times in parts.items()}


def _hours(parts: Parts, by: By, hosts: Mapping[str, str], zone: str) -> dict[str, float]:
    hours: dict[str, float] = defaultdict(float)
    for (person, gpu), times in parts.items():
        if by == "week":
            for interval in times:
                for week, seconds in by_week(interval, zone).items():
                    hours[f"{week.astimezone(zone_of(zone)):%Y-%m-%d}"] += seconds / 3600
        else:
            hours[person if by == "person" else hosts.get(gpu, "?")] += total(times).total_seconds() / 3600
    return dict(hours)

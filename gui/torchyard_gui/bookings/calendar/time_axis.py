"""The time axis: the displayed days and the positions of times within them. Does not depend on Qt.

All days have the same width. When daylight saving time begins or ends, the hours of that day are therefore slightly
wider (23 hours) or narrower (25 hours) than usual. No time is drawn twice or omitted.
"""

from __future__ import annotations

import calendar
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Literal

from torchyard_core.booking.time_parser import to_utc, zone_of

Span = Literal["day", "week", "month", "agenda"]
DAYS_BEFORE = 2
"""Number of days before the chosen day that the week view shows.

The number is small, because most bookings of interest are in the future.
"""
AGENDA_DAYS = 28
STEP_S = 15 * 60
"""The step of the keyboard cursor, and the finest step of a drag, in seconds."""


@dataclass(frozen=True)
class Day:
    """One column of the axis: a day in the axis's time zone. `start` and `end` are in seconds since 1970."""

    date: date
    start: float
    end: float

    @property
    def hours(self) -> float:
        return (self.end - self.start) / 3600


@dataclass(frozen=True)
class Axis:
    """Consecutive days side by side, from position 0 to `width`, in pixels."""

    days: tuple[Day, ...]
    zone: str
    width: float
    starts: tuple[float, ...]

    @property
    def since(self) -> datetime:
        return datetime.fromtimestamp(self.days[0].start, UTC)

    @property
    def until(self) -> datetime:
        return datetime.fromtimestamp(self.days[-1].end, UTC)

    @property
    def column(self) -> float:
        """The width of one day in pixels."""
        return self.width / len(self.days)

    def x_of(self, second: float) -> float:
        """Returns the position of a time. A time outside the shown days gets the position of the nearest end."""
        number = max(0, bisect_right(self.starts, second) - 1)
        day = self.days[number]
        share = min(max((second - day.start) / (day.end - day.start), 0.0), 1.0)
        return (number + share) * self.column

    def second_at(self, x: float) -> float:
        """Returns the time at a position. A position outside the shown days gets the time of the nearest end."""
        number = min(max(int(x // self.column), 0), len(self.days) - 1)
        day = self.days[number]
        share = min(max(x / self.column - number, 0.0), 1.0)
        return day.start + share * (day.end - day.start)

    def snapped(self, second: float, step: float) -> float:
        """Rounds a time to a multiple of `step` since the start of its local day, but not beyond the day's end."""
        day = self.days[max(0, bisect_right(self.starts, second) - 1)]
        return min(day.start + snapped(second - day.start, step), day.end)

    def ticks(self) -> Iterator[tuple[float, str]]:
        """Returns the positions and two-digit labels of the labelled hours."""
        every = _tick_hours(self.column)
        if not every:
            return
        for number, day in enumerate(self.days):
            for hour in range(every, 24, every):
                local = datetime.combine(day.date, time(hour))
                second = to_utc(local, self.zone).timestamp()
                yield (number + (second - day.start) / (day.end - day.start)) * self.column, f"{hour:02}"


def _tick_hours(column: float) -> int:
    """Returns the smallest interval in hours between labels at which the labels fit into a column, or 0 if no interval
    fits.
    """
    for every in (1, 2, 3, 6, 12):
        if column * every / 24 >= 26:
            return every
    return 0


def days_of(span: Span, around: date) -> tuple[date, ...]:
    """Returns the days to show: the chosen day, seven days around it, its month, or four weeks that begin with it."""
    if span == "day":
        return (around,)
    if span == "week":
        return tuple(around + timedelta(days=number - DAYS_BEFORE) for number in range(7))
    if span == "agenda":
        return tuple(around + timedelta(days=number) for number in range(AGENDA_DAYS))
    count = calendar.monthrange(around.year, around.month)[1]
    return tuple(around.replace(day=number + 1) for number in range(count))


def stepped(span: Span, around: date, by: int) -> date:
    """Returns the corresponding day in the next (`by` is 1) or previous (`by` is -1) span. If a month lacks that day,
    returns the last day of the month.
    """
    days = {"day": 1, "week": 7, "agenda": AGENDA_DAYS}
    if span in days:
        return around + timedelta(days=days[span] * by)
    months = around.year * 12 + around.month - 1 + by
    year, month = months // 12, months % 12 + 1
    return date(year, month, min(around.day, calendar.monthrange(year, month)[1]))


def axis_of(span: Span, around: date, zone: str, width: float) -> Axis:
    """Returns the axis of the days that a view of the given span shows for the chosen day `around`."""
    dates = days_of(span, around)
    starts = [to_utc(datetime.combine(one, time()), zone).timestamp() for one in dates]
    after = to_utc(datetime.combine(dates[-1] + timedelta(days=1), time()), zone).timestamp()
    days = tuple(Day(one, start, end) for one, start, end in zip(dates, starts, [*starts[1:], after], strict=True))
    return Axis(days, zone, max(width, float(len(days))), tuple(starts))


def drag_step(span: Span, *, is_fine: bool = False) -> float:
    """Returns the grid step of a drag in seconds. Each step is wide enough to be hit with the mouse."""
    if is_fine or span == "day":
        return STEP_S
    return 3600 if span == "week" else 6 * 3600


def snapped(second: float, step: float = STEP_S) -> float:
    """Rounds a time to a multiple of `step`.

    UTC offsets are multiples of a quarter of an hour, so multiples of a quarter of an hour are the same in every zone.
    """
    return round(second / step) * step


def utc(second: float) -> datetime:
    return datetime.fromtimestamp(second, UTC)


def local_day(moment: datetime, zone: str) -> date:
    return moment.astimezone(zone_of(zone)).date()


def zone_mark(moment: datetime, zone: str) -> str:
    """Returns the short name and the offset of a time zone, such as `KST (UTC+9)`. For a zone without a short name,
    returns only the offset.
    """
    local = moment.astimezone(zone_of(zone))
    offset = local.utcoffset() or timedelta()
    minutes = int(offset.total_seconds() // 60)
    sign = "−" if minutes < 0 else "+"
    hours, rest = divmod(abs(minutes), 60)
    far = f"UTC{sign}{hours}" + (f":{rest:02}" if rest else "") if minutes else "UTC"
    name = local.tzname() or zone
    return far if name.lstrip("+-").isdigit() or name == far else f"{name} ({far})"

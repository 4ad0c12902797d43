"""Local weeks and days of a time zone, as intervals in UTC."""

from __future__ import annotations

from datetime import datetime, time, timedelta

from torchyard_core.booking.intervals import Interval
from torchyard_core.booking.time_parser import to_utc, zone_of


def by_week(interval: Interval, zone: str) -> dict[datetime, float]:
    """Returns how many seconds of the interval fall into each week that it overlaps.

    Keys are the starts of weeks (Monday 00:00 in the zone) in UTC.
    """
    seconds: dict[datetime, float] = {}
    start = interval.start
    while start < interval.end:
        week = week_of(start, zone)
        end = min(interval.end, _days_after(week, zone, 7))
        seconds[week] = (end - start).total_seconds()
        start = end
    return seconds


def week_of(moment: datetime, zone: str) -> datetime:
    """Returns the start of the local week (from Monday) that contains the moment, in UTC."""
    local = moment.astimezone(zone_of(zone))
    monday = local.date() - timedelta(days=local.weekday())
    return to_utc(datetime.combine(monday, time()), zone)


def day_of(moment: datetime, zone: str) -> Interval:
    """Returns the local day that contains the moment."""
    start = to_utc(datetime.combine(moment.astimezone(zone_of(zone)).date(), time()), zone)
    return Interval(start, _days_after(start, zone, 1))


def _days_after(midnight: datetime, zone: str, days: int) -> datetime:
    local = midnight.astimezone(zone_of(zone))
    return to_utc(datetime.combine(local.date() + timedelta(days=days), time()), zone)

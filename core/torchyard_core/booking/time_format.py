"""Text for times and lengths of bookings, shared by window and command."""

from __future__ import annotations

from datetime import datetime, timedelta

from torchyard_core.booking.time_parser import wall_clock, zone_of


def until(start: datetime, end: datetime, zone: str) -> str:
    """`18:30`, or `Mon 23 Nov 18:30` on another day than `start`."""
    begin, finish = start.astimezone(zone_of(zone)), end.astimezone(zone_of(zone))
    day = "" if begin.date() == finish.date() else f"{finish:%a} {finish.day} {finish:%b} "
    return f"{day}{wall_clock(end, zone)}"


def full_span(start: datetime, end: datetime, zone: str) -> str:
    """`from Mon 2026-11-23 09:00 to Mon 2026-11-23 17:00 (Europe/Berlin, 8 h)`: all of it, for the user to confirm."""
    begin, finish = (wall_clock(one, zone, "%a %Y-%m-%d %H:%M") for one in (start, end))
    return f"from {begin} to {finish} ({zone}, {hours_of(end - start)})"


def hours_of(length: timedelta) -> str:
    """`8 h`, `90 min`, `2 days`."""
    minutes = round(length.total_seconds() / 60)
    if minutes % 60:
        return f"{minutes} min" if minutes < 600 else f"{minutes / 60:.1f} h"
    hours = minutes // 60
    return f"{hours // 24} days" if hours >= 48 and hours % 24 == 0 else f"{hours} h"


def command_length(length: timedelta) -> str:
    """A length for a command line: `8h`, `90m`."""
    minutes = max(1, round(length.total_seconds() / 60))
    return f"{minutes // 60}h" if minutes % 60 == 0 else f"{minutes}m"


def command_time(moment: datetime, zone: str) -> str:
    """A time for a command line, `2026-11-23 09:00`; rounded up to the minute, so that it is not before `moment`."""
    local = moment.astimezone(zone_of(zone))
    if local.second or local.microsecond:
        local += timedelta(seconds=60 - local.second)
    return wall_clock(local, zone, "%Y-%m-%d %H:%M")

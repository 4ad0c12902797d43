"""Times as people write them, in the zone that they live in."""

from __future__ import annotations

import os
import re
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from torchyard_core.booking.refusals import Refused
from torchyard_core.topology.problems import did_you_mean

END_OF_TIME = 3000
"""Weeks and days of what is later than any booking need not be counted."""
_RELATIVE = re.compile(r"\+\s*(\d+(?:\.\d+)?)\s*(min|m|h|d|w)")
_UNITS = {"min": "minutes", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_CLOCK = re.compile(r"(?:(today|tomorrow|\d{4}-\d{2}-\d{2})[T ]?\s*)?(?:(\d{1,2})(?::(\d{2}))?(?::(\d{2}))?)?")


@cache
def zone_of(name: str) -> ZoneInfo:
    """The zone of that IANA name. Raises Refused."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        near = did_you_mean(name, available_timezones())
        raise Refused(
            f"there is no time zone `{name}`{near}",
            code="unknown_zone",
            hint="Zones have names like Europe/Berlin, Asia/Seoul or UTC.",
        ) from None


def local_zone() -> str:
    """This computer's zone by its IANA name; UTC where it cannot be told."""
    named = os.environ.get("TZ", "").lstrip(":")
    candidates = [named] if named else []
    link = Path("/etc/localtime")
    if link.is_symlink():
        candidates.append(str(link.resolve()).rpartition("zoneinfo/")[2])
    for name in candidates:
        try:
            zone_of(name)
        except Refused:
            continue
        return name
    return "UTC"


def to_utc(local: datetime, zone: str) -> datetime:
    """A wall-clock time of the zone. One that a spring night skips is taken as if the clocks had not been put forward
    (02:30 becomes 03:30); of one that an autumn night has twice, the first: RFC 5545, 3.3.5."""
    return local.replace(tzinfo=zone_of(zone), fold=0).astimezone(UTC)


def length(text: str) -> timedelta:
    """`4h`, `90m`, `2d`, `1w`. Raises Refused."""
    match = _RELATIVE.fullmatch(f"+{text.strip().lstrip('+')}")
    if not match:
        raise Refused(f"`{text}` is not a length of time", code="bad_time", hint="Write 4h, 90m, 2d or 1w.")
    return _length(match)


def _length(match: re.Match[str]) -> timedelta:
    try:
        return timedelta(**{_UNITS[match[2]]: float(match[1])})
    except OverflowError:
        raise Refused(f"`{match[0]}` is longer than any calendar", code="bad_time") from None


def moment(text: str, zone: str, now: datetime) -> datetime:
    """RFC 3339, or of the zone: `2026-11-23 09:00`, `tomorrow 9`, `18:30` (today), or `now`, `+4h`. Raises Refused."""
    found = _moment(text, zone, now)
    if found.year >= END_OF_TIME:
        raise Refused(
            f"`{text}` is further ahead than this calendar goes",
            code="bad_time",
            hint=f"Name a time before the year {END_OF_TIME}.",
        )
    return found


def _moment(text: str, zone: str, now: datetime) -> datetime:
    words = text.strip()
    if words == "now":
        return now.astimezone(UTC).replace(microsecond=0)
    try:
        if match := _RELATIVE.fullmatch(words):
            return (now + _length(match)).astimezone(UTC).replace(microsecond=0)
        if words and (match := _CLOCK.fullmatch(words)):
            return to_utc(_clock(match, now.astimezone(zone_of(zone))), zone)
        written = datetime.fromisoformat(words)
        return (written if written.tzinfo else to_utc(written, zone)).astimezone(UTC).replace(microsecond=0)
    except (ValueError, OverflowError):
        raise Refused(
            f"`{text}` is not a time",
            code="bad_time",
            hint="Write 2026-11-23 09:00, tomorrow 9, 18:30, +4h, or 2026-11-23T09:00:00Z.",
        ) from None


def _clock(match: re.Match[str], today: datetime) -> datetime:
    day, hour, minute, second = match.groups()
    if day is None and minute is None:
        raise ValueError("a number alone")
    if day in (None, "today", "tomorrow"):
        date = (today + timedelta(days=day == "tomorrow")).date()
    else:
        date = datetime.fromisoformat(str(day)).date()
    return datetime(date.year, date.month, date.day, int(hour or 0), int(minute or 0), int(second or 0))

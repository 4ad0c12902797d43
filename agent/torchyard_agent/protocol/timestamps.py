"""Conversions of times between RFC 3339 text and seconds since 1970.

This module has its own parser, because the parser of Python 3.9 rejects `Z`, and because the module `datetime` would
take half a megabyte of a daemon's memory.
"""

from __future__ import annotations

import re
import time

_TIME = re.compile(r"(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d):(\d\d)(?:\.\d{1,9})?(Z|[+-]\d\d:\d\d)")


def parse_timestamp(moment: object) -> float:
    """Converts RFC 3339 text with an offset to whole seconds since 1970. Raises ValueError if the text is invalid.

    A number is interpreted as seconds since 1970.
    """
    if isinstance(moment, (int, float)) and not isinstance(moment, bool) and 0 <= moment < 1e11:
        return float(moment)
    match = _TIME.fullmatch(moment) if isinstance(moment, str) else None
    if match is None:
        raise ValueError(f"{str(moment)[:40]!r} is no time with an offset (2026-11-22T09:00:00Z)")
    year, month, day, hour, minute, second = map(int, match.groups()[:6])
    if not (1 <= month <= 12 and 1 <= day <= 31 and hour < 24 and minute < 60 and second < 61):
        raise ValueError(f"{moment!r} is no time")
    offset = 0
    if match[7] != "Z":
        offset = (int(match[7][1:3]) * 60 + int(match[7][4:])) * 60 * (-1 if match[7][0] == "-" else 1)
    return float(_days(year, month, day) * 86400 + hour * 3600 + minute * 60 + second - offset)


def _days(year: int, month: int, day: int) -> int:
    """Returns the number of days from 1970-01-01 to a Gregorian date.

    Source: Hinnant, "chrono-Compatible Low-Level Date Algorithms".
    """
    year -= month <= 2
    era, of_era = divmod(year, 400)
    of_year = (153 * (month + (-3 if month > 2 else 9)) + 2) // 5 + day - 1
    return era * 146097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719468


def rfc3339(seconds: float) -> str:
    """Formats seconds since 1970 as `2026-11-22T09:00:00Z`."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def with_milliseconds(seconds: float) -> str:
    """Formats seconds since 1970 with milliseconds, as `2026-11-22T09:00:00.125Z`."""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{int(seconds * 1000) % 1000:03d}Z"


def now() -> str:
    """Returns the current time with milliseconds, as RFC 3339 text."""
    return with_milliseconds(time.time())

"""Expansion of RFC 5545 recurrence rules in the local time of their zone.

Weekly 09:00 in Berlin is 08:00Z in winter and 07:00Z in summer. All occurrences have the length of the first one in
UTC, so each has the same GPU-hours even if clocks change during an occurrence.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime

from dateutil.rrule import rrulestr

from torchyard_core.booking.errors import Refused
from torchyard_core.booking.intervals import Interval
from torchyard_core.booking.time_parser import to_utc, zone_of

AT_MOST = 500
"""Maximum number of occurrences of a series."""
_KEYS = frozenset((
    "FREQ", "UNTIL", "COUNT", "INTERVAL", "BYDAY", "BYMONTHDAY", "BYMONTH", "BYSETPOS", "BYYEARDAY", "BYWEEKNO", "WKST"
))  # fmt: skip
_FREQUENCIES = ("DAILY", "WEEKLY", "MONTHLY", "YEARLY")
LONGEST_YEARS = 50
"""Maximum length of a series in years."""
_LATE = 9900
_HINT = "Rules are like FREQ=WEEKLY;BYDAY=MO,WE;COUNT=10 (RFC 5545)."


def occurrences(rule: str, start: datetime, end: datetime, zone: str, until: datetime) -> tuple[Interval, ...]:
    """Returns the intervals of a series in UTC.

    The interval from `start` to `end` is included only if the rule matches its start. If the rule has neither COUNT nor
    UNTIL, only occurrences that begin no later than `until` are returned. Otherwise all occurrences are returned.

    Raises:
        Refused: The rule is invalid or repeats more often than daily, its occurrences overlap, there are none or more
            than AT_MOST, or they do not end within LONGEST_YEARS.
    """
    local = start.astimezone(zone_of(zone)).replace(tzinfo=None)
    last = None if has_end(rule) else until.astimezone(zone_of(zone)).replace(tzinfo=None)
    duration = end - start
    found: list[Interval] = []
    for wall_clock in _wall_clocks(rule, local, zone, last):
        # An occurrence at `start` keeps its exact moment, which may be the second one of an ambiguous local time.
        begin = start.astimezone(UTC) if wall_clock == local else to_utc(wall_clock, zone)
        if found and begin < found[-1].end:
            message = "the series overlaps itself: it repeats before a booking of it has ended"
            raise Refused(message, code="bad_rule", hint="Make each booking shorter, or repeat less often.")
        found.append(Interval(begin, begin + duration))
        if len(found) > AT_MOST:
            message = f"the series has more than {AT_MOST} bookings"
            raise Refused(message, code="too_many", hint="End it earlier: add COUNT=… or UNTIL=… to the rule.")
    if not found:
        raise Refused(f"the rule `{rule}` names no time before it ends", code="bad_rule", hint=_HINT)
    return tuple(found)


def has_end(rule: str) -> bool:
    """Returns whether the rule has a COUNT or UNTIL. Raises Refused for an invalid rule."""
    return not {"COUNT", "UNTIL"}.isdisjoint(_parts(rule))


def _wall_clocks(text: str, start: datetime, zone: str, last: datetime | None) -> Iterator[datetime]:
    """Yields the rule's local times in order up to `last`, or up to the rule's own end if `last` is None.

    For a rule without occurrences (30 February), dateutil would search up to the year 9999, which takes seconds. The
    Gregorian calendar repeats every 400 years, weekdays included, so the rule is first moved to a year between 9501 and
    9900. The search then ends after at most a few hundred years.

    Raises Refused for an invalid rule, and for one that does not end within LONGEST_YEARS.
    """
    parts = _parts(text)
    until, counted = parts.pop("UNTIL", None), "COUNT" in parts
    given = 0
    try:
        longest = start.replace(year=start.year + LONGEST_YEARS, day=min(start.day, 28))
        end = last or longest
        if until is not None:
            end = min(end, _until(until, zone))
        shift = (_LATE - start.year) // 400 * 400
        rule = rrulestr(";".join(f"{key}={value}" for key, value in parts.items()), dtstart=_shifted(start, shift))
        for wall_clock in rule:
            found = _shifted(wall_clock, -shift)
            if found > end:
                break
            yield found
            given += 1
    except (ValueError, TypeError, OverflowError, AttributeError, ZeroDivisionError) as error:
        raise Refused(f"the rule `{text}` cannot be read: {error}", code="bad_rule", hint=_HINT) from None
    if given and last is None and (given < int(parts["COUNT"]) if counted else end == longest):
        raise Refused(
            f"the rule `{text}` has not ended after {LONGEST_YEARS} years", code="bad_rule", hint="End it earlier."
        )


def _shifted(moment: datetime, years: int) -> datetime:
    return moment.replace(year=moment.year + years)


def _parts(text: str) -> dict[str, str]:
    parts: dict[str, str] = {}
    for part in text.strip().removeprefix("RRULE:").split(";"):
        key, equals, value = part.strip().upper().partition("=")
        if not equals or not value or key not in _KEYS or key in parts:
            raise Refused(f"the rule `{text}` cannot be read at `{part}`", code="bad_rule", hint=_HINT)
        parts[key] = value
    if parts.get("FREQ") not in _FREQUENCIES:
        raise Refused(
            f"the rule `{text}` repeats neither by days, weeks, months nor years", code="bad_rule", hint=_HINT
        )
    if "COUNT" in parts and "UNTIL" in parts:
        raise Refused(f"the rule `{text}` has both COUNT and UNTIL", code="bad_rule", hint="Leave one of them out.")
    for key in ("COUNT", "INTERVAL"):
        if key in parts and not re.fullmatch(r"[1-9]\d{0,4}", parts[key]):
            raise Refused(f"the rule `{text}` has a {key} that is no number above 0", code="bad_rule", hint=_HINT)
    return parts


def _until(text: str, zone: str) -> datetime:
    """Returns UNTIL (RFC 5545: a time in UTC, a local time or a date) as a local time. A date means its last second."""
    if re.fullmatch(r"\d{8}", text):
        return datetime.strptime(text + "235959", "%Y%m%d%H%M%S")
    if text.endswith("Z"):
        in_utc = datetime.strptime(text, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
        return in_utc.astimezone(zone_of(zone)).replace(tzinfo=None)
    return datetime.strptime(text, "%Y%m%dT%H%M%S")

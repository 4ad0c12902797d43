"""Parsing of times, dates and lengths entered by users, and the time zone of the user."""

from __future__ import annotations

import os
import re
import unicodedata
from datetime import UTC, date, datetime, time, timedelta
from functools import cache
from pathlib import Path
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from torchyard_core.booking.errors import Refused
from torchyard_core.formatting import wall_clock
from torchyard_core.problems import did_you_mean

END_OF_TIME = 3000
"""The year before which all bookings end."""
_PART = r"(\d+(?:\.\d+)?)\s*(weeks?|w|days?|d|hours?|hrs?|h|minutes?|mins?|m)"
_LENGTH = re.compile(rf"\+?\s*{_PART}(?:\s*{_PART})*")
_UNITS = {"w": "weeks", "d": "days", "h": "hours", "m": "minutes"}
_CLOCK = re.compile(
    r"(?:(?P<date>.*?)(?:\s*,\s*|\s+|(?<=\d)t))??"
    r"(?:(?P<half>오전|오후)\s*)?(?P<hour>\d{1,2})"
    r"(?::(?P<minute>\d{2})(?::(?P<second>\d{2}))?|\s*(?P<o_clock>시)(?:\s*(?P<minute_ko>\d{1,2})분)?)?"
    r"(?:\s*(?P<suffix>am|pm))?"
)
_LONGEST = 60
"""Maximum number of characters of a time that a user enters."""
_TIME_HINT = (
    "Write 2026-11-23 09:00, tomorrow 9, fri 17:00, next monday 9:00, 25.11. 14:00, Nov 25 9pm, 18:30, 내일 9시, +4h, "
    "or 2026-11-23T09:00:00Z."
)


@cache
def zone_of(name: str) -> ZoneInfo:
    """Returns the zone with an IANA name. Raises Refused for an unknown name."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        near = did_you_mean(name, available_timezones())
        hint = "Zones have names like Europe/Berlin, Asia/Seoul or UTC."
        raise Refused(f"there is no time zone `{name}`{near}", code="unknown_zone", hint=hint) from None


def local_zone() -> str:
    """Returns the IANA name of this computer's zone, or UTC if unknown."""
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
    """Converts a local time of the zone to UTC.

    As in RFC 5545, 3.3.5, a time that is skipped when clocks go forward is moved forward by the same amount (02:30
    becomes 03:30), and a time that occurs twice means its first occurrence.
    """
    return local.replace(tzinfo=zone_of(zone), fold=0).astimezone(UTC)


def instants(local: datetime, zone: str) -> tuple[datetime, ...]:
    """Returns the moments of a local time in UTC: one, none if clocks skip it, or two if it occurs twice."""
    place = zone_of(zone)
    moments = {local.replace(tzinfo=place, fold=fold).astimezone(UTC) for fold in (0, 1)}
    return tuple(sorted(one for one in moments if one.astimezone(place).replace(tzinfo=None, fold=0) == local))


def instant(local: datetime, zone: str) -> datetime:
    """Returns the single moment of a local time. Raises Refused if there is no such moment, or if there are two."""
    found = instants(local, zone)
    if len(found) == 1:
        return found[0]
    if not found:
        later = to_utc(local, zone).astimezone(zone_of(zone))
        message = f"{local:%a %Y-%m-%d} has no {local:%H:%M} in {zone}: clocks are put forward that night"
        raise Refused(message, code="no_such_time", hint=f"{later:%H:%M} is as long after midnight.")
    first, second = (wall_clock(one, zone, "%Y-%m-%d %H:%M") for one in found)
    message = f"{local:%a %Y-%m-%d} has {local:%H:%M} twice in {zone}: clocks are put back that night"
    raise Refused(message, code="ambiguous_time", hint=f"Write `{first}` or `{second}`.")


def length(text: str) -> timedelta:
    """Parses a length: `4h`, `90m`, `1h30m`, `2d`, `1w`. Raises Refused for other text."""
    words = text.strip().lower()
    if not _LENGTH.fullmatch(words):
        raise Refused(f"`{text}` is not a length of time", code="bad_time", hint="Write 4h, 90m, 1h30m, 2d or 1w.")
    try:
        return sum(
            (timedelta(**{_UNITS[unit[0]]: float(much)}) for much, unit in re.findall(_PART, words)), timedelta()
        )
    except OverflowError:
        raise Refused(f"`{text}` is longer than any calendar", code="bad_time") from None


def moment(text: str, zone: str, now: datetime) -> datetime:
    """Parses a time: RFC 3339, `now`, `+4h`, or a local time of the zone.

    Local times are `2026-11-23 09:00`, `2026-W48-1 9:00`, `tomorrow 9`, `18:30` (today), or a date in words.

    Raises:
        Refused: The time is invalid, does not exist, occurs twice, or is not before END_OF_TIME.
    """
    words = unicodedata.normalize("NFKC", text).strip().lower()
    try:
        if words == "now":
            found = now
        elif len(words) > _LONGEST:
            raise ValueError("a text and no time")
        elif words.startswith("+"):
            found = now + length(words)
        else:
            found = _written(words, zone, now)
        found = found.astimezone(UTC).replace(microsecond=0)
    except (ValueError, OverflowError):
        message = f"`{text}` is not a time" if words else "a time is missing"
        raise Refused(message, code="bad_time", hint=_TIME_HINT) from None
    if found.year >= END_OF_TIME:
        message = f"`{text}` is further ahead than this calendar goes"
        raise Refused(message, code="bad_time", hint=f"Name a time before the year {END_OF_TIME}.")
    return found


def end_moment(text: str, start: datetime, zone: str, now: datetime) -> datetime:
    """Parses the end of an interval that begins at `start`. Raises Refused for other text.

    A length (`+4h`, `4h`) is added to the start. A time of day means its first occurrence after the start. Any other
    text is parsed by `moment`.
    """
    words = unicodedata.normalize("NFKC", text).strip().lower()
    if _LENGTH.fullmatch(words):
        return moment(f"+{words.removeprefix('+')}", zone, start)
    match = _CLOCK.fullmatch(words[: _LONGEST + 1])
    if match is None or match["date"] or not _is_clock(match):
        return moment(text, zone, now)
    begin = start.astimezone(zone_of(zone)).replace(tzinfo=None)
    for days in (0, 1):
        local = _at(begin.date() + timedelta(days=days), _clock(match, text))
        if local > begin or any(one > start for one in instants(local, zone)):
            return instant(local, zone)
    raise AssertionError("a time of the next day is later")


def _written(words: str, zone: str, now: datetime) -> datetime:
    """Parses a local time or an RFC 3339 time in lower case. Raises ValueError or Refused for other text."""
    local = now.astimezone(zone_of(zone)).replace(tzinfo=None)
    match = _CLOCK.fullmatch(words)
    if match and _is_clock(match):
        clock = _clock(match, words)
        day = _date(match["date"] or "today", local, clock)
        return instant(_at(day, clock), zone)
    try:
        # If clocks change at midnight, the day begins at its first existing moment.
        return to_utc(datetime.combine(_date(words, local, None), time()), zone)
    except ValueError:
        if match and match["date"] and int(match["hour"]) <= 24:  # The text is a day and an hour: `tomorrow 9`.
            clock = _clock(match, words)
            return instant(_at(_date(match["date"], local, clock), clock), zone)
    written = datetime.fromisoformat(words.upper())
    return written if written.tzinfo else instant(written, zone)


def _is_clock(match: re.Match[str]) -> bool:
    """Returns whether a match is certainly a time of day. A number alone is not, since it may be part of a date."""
    return any(match[name] for name in ("half", "minute", "o_clock", "suffix"))


def _clock(match: re.Match[str], text: str) -> timedelta:
    """Parses a time of day. Returns the time since midnight, up to 24:00. Raises Refused if it is invalid."""
    hour = int(match["hour"])
    minute, second = int(match["minute"] or match["minute_ko"] or 0), int(match["second"] or 0)
    half = {"오전": "am", "오후": "pm"}.get(match["half"] or "", match["suffix"])
    is_half = half is None or (1 <= hour <= 12 and not (match["half"] and match["suffix"]))
    if half is not None:
        hour = hour % 12 + 12 * (half == "pm")
    clock = timedelta(hours=hour, minutes=minute, seconds=second)
    if not is_half or minute > 59 or second > 59 or clock > timedelta(days=1):
        raise Refused(f"`{text}` is not a time of day", code="bad_time", hint="Write 9:00, 17:30, 5pm or 24:00.")
    return clock


def _at(day: date, clock: timedelta) -> datetime:
    return datetime.combine(day, time()) + clock


def _date(words: str, now: datetime, clock: timedelta | None) -> date:
    """Parses a date. If `clock` is given, a weekday means the next such day on which this time of day is in the future.

    Raises ValueError for other text.
    """
    if words in ("today", "tomorrow"):
        return now.date() + timedelta(days=words == "tomorrow")
    try:
        return date.fromisoformat(words.upper())
    except ValueError:
        pass
    if not re.search(r"[^\W\d_]|\d\.", words):
        raise ValueError(words)
    of_day = None if clock is None else (datetime.min + clock).time() if clock < timedelta(days=1) else time.max
    return read_date(words, now, of_day)


RECENT = timedelta(days=90)
"""How long ago a date without a year may be. An earlier date means the next such date in the future."""
_WEEKDAY = (
    r"(?:mon(?:day)?|tue(?:s|sday)?|wed(?:nesday)?|thu(?:r|rs|rsday)?|fri(?:day)?|sat(?:urday)?|sun(?:day)?"
    r"|[월화수목금토일]요일)"
)
_MONTH = (
    r"(?:jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?|oct(?:ober)?"
    r"|nov(?:ember)?|dec(?:ember)?)\.?"
)
_DAY = r"(?P<day>\d{1,2})(?:st|nd|rd|th)?"
_YEAR = r"(?P<year>\d{4})"
_RELATIVE = re.compile(r"day after tomorrow|오늘|내일")
_OF_A_WEEK = re.compile(rf"(?:(?P<which>next|this|다음\s?주|이번\s?주)\s*)?(?P<weekday>{_WEEKDAY})")
_OF_A_YEAR = [
    re.compile(shape)
    for shape in (
        rf"{_MONTH}\s*{_DAY}(?:,?\s+{_YEAR})?",
        rf"{_DAY}\.?\s+(?:of\s+)?{_MONTH}(?:,?\s+{_YEAR})?",
        rf"(?:{_YEAR}년\s*)?\d{{1,2}}월\s*(?P<day>\d{{1,2}})일",
    )
]
_NUMBERS = re.compile(rf"(?P<day>\d{{1,2}})\.\s?(?P<month>\d{{1,2}})\.(?:\s?{_YEAR})?")
_WITH_WEEKDAY = re.compile(rf"(?P<weekday>{_WEEKDAY}),?\s+(?P<date>.+)")


def read_date(text: str, now: datetime, clock: time | None) -> date:
    """Parses a date in lower-case words. Raises ValueError for other text.

    A weekday means the first such day whose time `clock` (midnight if None) is after `now`. `next` before a weekday
    excludes today. `this` and `이번 주` mean the current week, and `다음 주` means the next week (from Monday). A date
    without a year may be up to RECENT ago; an earlier date means the next one in the future.

    Args:
        text: The date.
        now: The local time.
        clock: The time of day that belongs to the date.
    """
    today = now.date()
    if text == "모레":
        return today + timedelta(days=2)
    if _RELATIVE.fullmatch(text):
        return _parsed(text, today)
    if match := _OF_A_WEEK.fullmatch(text):
        return _of_a_week(match["which"] or "", _parsed(match["weekday"], today).weekday(), now, clock)
    for shape in _OF_A_YEAR:
        if match := shape.fullmatch(text):
            # dateparser returns the first matching date after the base date that it is given.
            found = _parsed(text, today if match["year"] else today - RECENT)
            if found.day != int(match["day"]) or found.year != int(match["year"] or found.year):
                raise ValueError(f"{text} was read as {found}")
            return found
    if match := _NUMBERS.fullmatch(text):  # dateparser reads `1.11.` as a time of day.
        return _of_numbers(int(match["day"]), int(match["month"]), match["year"], today)
    if match := _WITH_WEEKDAY.fullmatch(text):
        found = _dated(match["date"], now, clock)
        if found.weekday() != _parsed(match["weekday"], today).weekday():
            raise ValueError(f"{found} is a {found:%A}")
        return found
    raise ValueError(f"no date: {text}")


def _dated(text: str, now: datetime, clock: time | None) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        return read_date(text, now, clock)


def _of_a_week(which: str, weekday: int, now: datetime, clock: time | None) -> date:
    today = now.date()
    monday = today - timedelta(days=today.weekday())
    if which.startswith("다음"):
        return monday + timedelta(days=7 + weekday)
    if which.startswith("이번") or which == "this":
        return monday + timedelta(days=weekday)
    ahead = (weekday - today.weekday()) % 7
    if ahead == 0 and (which == "next" or (clock or time()) <= now.time()):
        ahead = 7
    return today + timedelta(days=ahead)


def _of_numbers(day: int, month: int, year: str | None, today: date) -> date:
    if year is not None:
        return date(int(year), month, day)
    first = today - RECENT
    found = date(first.year, month, day)
    return found if found > first else date(first.year + 1, month, day)


def _parsed(text: str, today: date) -> date:
    from dateparser.date import DateDataParser  # This import takes 0.2 s, and few dates require it.

    parser = DateDataParser(
        languages=["en", "ko"],
        settings={
            "RELATIVE_BASE": datetime.combine(today, time()),
            "PREFER_DATES_FROM": "future",
            "DATE_ORDER": "DMY",
            "TIMEZONE": "UTC",
            "PARSERS": ["relative-time", "absolute-time"],
        },
    )
    found: datetime | None = parser.get_date_data(text).date_obj
    if found is None:
        raise ValueError(f"no date: {text}")
    return found.date()

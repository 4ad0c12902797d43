"""Export and import of iCalendar files (`.ics`).

Each booking is exported as a separate event in UTC. This includes the bookings of a series, because each of them may
have been moved or released. Properties named `X-TORCHYARD-…` hold the GPUs, owner and zone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from math import prod
from time import thread_time
from typing import Any

import recurring_ical_events
from dateutil.rrule import rrulestr
from icalendar import Calendar, Event
from icalendar.parser import Contentline

from torchyard_core.booking.errors import BadCalendar, Refused
from torchyard_core.booking.model import Booking, Draft, Slot, State, whole_seconds
from torchyard_core.booking.slots import format_slots, parse_slots
from torchyard_core.booking.time_parser import END_OF_TIME, to_utc, zone_of

AT_MOST = 1000
"""Maximum number of draft bookings that are created from one file."""
EXPANDED_AT_MOST = 10_000
"""Number of expanded occurrences after which the remaining events of the file are skipped."""
MAX_BYTES = 10_000_000
FIRST_LOOK = timedelta(days=366)
"""The length of the first period for which a recurring event is expanded. Each further period is twice as long."""
EVER = datetime(1970, 1, 1, tzinfo=UTC), datetime(END_OF_TIME, 1, 1, tzinfo=UTC)
"""An interval that contains all bookings."""
_RULE = re.compile(r"(?im)^RRULE\b.*")
_TIMES_OF_DAY = ("BYHOUR", "BYMINUTE", "BYSECOND")
_PER_DAY = 24
"""Maximum number of times of day that a rule may specify by BYHOUR, BYMINUTE and BYSECOND together."""
_PERIOD_S = {"SECONDLY": 1, "MINUTELY": 60, "HOURLY": 3600}
"""Seconds between two occurrences, for rules that repeat more often than daily.

Such a rule is expanded only if it has COUNT or UNTIL and no BY… parts.
"""
_DAY_S = 86400
MOST_REPEATED = 200_000
"""Maximum estimated number of occurrences of a rule, including occurrences in the past."""
LONGEST_S = 60.0
"""Maximum CPU time in seconds for each of two passes over the events: the first checks them, the second expands them.

Events that are not reached within this time are skipped and counted in `Imported.unread`.
"""
_LATE = 9900
_TIME_IN_LINE = re.compile(r"(?<!\d)\d{8}(?:T\d{6}Z?)?(?!\d)")
_TIME_PROPERTIES = frozenset({"DTSTART", "DTEND", "DURATION", "RRULE", "RDATE", "EXDATE", "EXRULE", "RECURRENCE-ID"})
"""Properties that determine the time of an event. An event is not imported if one of them cannot be read."""
_HINT = "Export it anew from the calendar that made it."


@dataclass(frozen=True)
class Imported:
    """The drafts from an `.ics` file. `remarks` gives the reasons why events were skipped or read only in part."""

    drafts: tuple[Draft, ...]
    remarks: tuple[str, ...]
    unread: int = 0
    """The number of skipped events that were unreadable, or not reached within LONGEST_S."""


@dataclass
class _Block:
    """One event (VEVENT) of the file.

    `calendar` is the index of its calendar in the file, `number` is the number of its first line, and `event` is its
    parsed form, or None if it cannot be parsed.
    """

    calendar: int
    number: int
    lines: list[str]
    event: Any = None

    @property
    def title(self) -> str:
        return str(self.event.get("summary", "")).strip() if self.event is not None else ""

    def remark(self, text: str) -> str:
        return f"{self.title or 'event'} (line {self.number}): {text}"


class _Unreadable(Exception):
    """Raised for an unreadable event, with the reason."""


def export_ics(bookings: Iterable[Booking], slots: Sequence[Slot]) -> str:
    """Returns the bookings as one calendar (RFC 5545).

    Cancelled bookings have the status CANCELLED. Other bookings end at `Booking.until`.
    """
    calendar = Calendar()
    calendar.add("prodid", "-//Torchyard//Bookings//EN")
    calendar.add("version", "2.0")
    for booking in sorted(bookings, key=lambda one: (one.start, one.id)):
        event = Event()
        event.add("uid", booking.uid or f"{booking.id}@torchyard")
        event.add("summary", booking.title)
        event.add("dtstamp", booking.changed)
        event.add("created", booking.created)
        event.add("last-modified", booking.changed)
        event.add("dtstart", booking.start)
        event.add("dtend", booking.end if booking.state is State.CANCELLED else booking.until)
        event.add("location", format_slots(booking.gpus, slots))
        event.add("status", "CANCELLED" if booking.state is State.CANCELLED else "CONFIRMED")
        if booking.purpose:
            event.add("description", booking.purpose)
        event.add("x-torchyard-gpus", " ".join(booking.gpus))
        event.add("x-torchyard-owner", booking.owner)
        event.add("x-torchyard-zone", booking.zone)
        calendar.add_component(event)
    text: str = calendar.to_ical().decode()
    return text


def read_ics(
    text: str | bytes, *, zone: str, since: datetime, until: datetime, slots: Sequence[Slot], gpus: Sequence[str] = ()
) -> Imported:
    """Returns at most AT_MOST drafts, made from the file's events that end after `since` and begin before `until`.

    Recurring events are expanded, and cancelled events are ignored. Times without a zone and all-day events are
    interpreted in `zone`.

    The GPUs of an event are those in X-TORCHYARD-GPUS if all of them are known, otherwise those in its location
    (`gpu-b:2-5`), otherwise `gpus`. Unreadable events, and events without GPUs or duration, are skipped with a remark.

    Raises:
        BadCalendar: The file is too large, is not a calendar, or has unreadable events but no readable event.
        Refused: `zone` is unknown.
    """
    zone_of(zone)
    calendars, blocks, unread = _parsed(text, until)
    is_read = False
    drafts: list[Draft] = []
    remarks: list[str] = []
    expanded = 0
    stop = thread_time() + LONGEST_S
    for group in _groups(blocks, remarks):
        if expanded > EXPANDED_AT_MOST:
            remarks.append(group[0].remark(f"left out with all after it, {expanded} times come before it"))
            break
        if thread_time() > stop:
            unread.append((group[0], f"reading the file took longer than {LONGEST_S:.0f} s"))
            continue
        try:
            events = _occurrences(calendars[group[0].calendar], group, zone, since, until)
        except _Unreadable as unreadable:
            unread.append((group[0], str(unreadable)))
            continue
        is_read = True
        expanded += len(events)
        is_torn = any(name is None for block in group for name, _ in block.event.errors)
        reasons = ["a line of it cannot be read and was skipped"] if is_torn else []
        if not events and _begins(group[0].event, zone) >= until:
            reasons.append(f"left out, it begins after {until.astimezone(zone_of(zone)):%Y-%m-%d}")
        for event in events:
            drafts += _draft(event, zone, since, slots, gpus, reasons)
        remarks += [group[0].remark(line) for line in dict.fromkeys(reasons)]
    if unread and not is_read:
        block, why = min(unread, key=lambda one: one[0].number)
        raise BadCalendar(f"the calendar cannot be read: line {block.number}: {why}", hint=_HINT)
    remarks = [*(block.remark(f"left out, {why}") for block, why in unread), *remarks]
    drafts.sort(key=lambda one: (one.start, one.uid))
    if len(drafts) > AT_MOST:
        remarks.append(f"{len(drafts)} events: only the first {AT_MOST} were taken")
    return Imported(tuple(drafts[:AT_MOST]), tuple(remarks), len(unread))


def _draft(
    event: Any, zone: str, since: datetime, slots: Sequence[Slot], gpus: Sequence[str], reasons: list[str]
) -> list[Draft]:
    """Returns a list with the draft of an occurrence, or an empty list if the occurrence is skipped.

    Appends remarks to `reasons`. Cancelled and past occurrences are skipped without a remark.
    """
    title = str(event.get("summary", "")).strip() or "imported"
    if str(event.get("status", "")).upper() == "CANCELLED":
        return []
    try:
        start, end, whole_days = _times(event, zone)
        chosen = _gpus(event, slots, gpus)
        own_zone = _zone(event, zone)
    except (Refused, ValueError, OverflowError) as error:
        reasons.append(f"left out, {error}")
        return []
    if end <= start:
        reasons.append("left out, its duration is zero")
        return []
    if end <= since:
        return []
    if whole_days:
        reasons.append(f"a whole day, taken from midnight to midnight in {zone}")
    purpose = str(event.get("description", ""))[:5000]
    return [Draft(title[:200], chosen, start, end, own_zone, purpose, uid=str(event.get("uid", "")))]


def _parsed(text: str | bytes, until: datetime) -> tuple[list[Any], list[_Block], list[tuple[_Block, str]]]:
    """Parses the file.

    Returns its calendars without events, the readable events, and the unreadable events with reasons.
    """
    if len(text) > MAX_BYTES:
        raise BadCalendar(f"the calendar is larger than {MAX_BYTES // 1_000_000} MB", hint="Export fewer days of it.")
    content = text.decode("utf-8-sig", errors="replace") if isinstance(text, bytes) else text.removeprefix("\ufeff")
    frames, blocks, unread = _split(re.split(r"\r\n|\n|\r", content))
    if not frames:
        raise BadCalendar("the calendar cannot be read: it has neither BEGIN:VCALENDAR nor BEGIN:VEVENT", hint=_HINT)
    calendars: list[Any] = []
    for number, frame in enumerate(frames):
        calendar = _calendar(frame, [])
        if calendar is None:  # If a component such as VTIMEZONE is invalid, only the header is used.
            header = [line.upper().startswith("BEGIN:") for line in frame[1:]]
            frame = frame[: header.index(True) + 1] if True in header else ["BEGIN:VCALENDAR"]
            calendar = _calendar(frame, [])
        calendars.append(calendar if calendar is not None else Calendar())
        of_it = [block for block in blocks if block.calendar == number]
        together = _calendar(frame, of_it)
        events = together.walk("VEVENT") if together is not None else []
        for place, block in enumerate(of_it):
            if len(events) == len(of_it):
                block.event = events[place]
            elif (alone := _calendar(frame, [block])) is not None:
                block.event = next(iter(alone.walk("VEVENT")), None)
    stop = thread_time() + LONGEST_S
    for block in blocks:
        is_late = thread_time() > stop
        if why := f"reading the file took longer than {LONGEST_S:.0f} s" if is_late else _why_unreadable(block, until):
            unread.append((block, why))
    bad = {block.number for block, _ in unread}
    return calendars, [block for block in blocks if block.number not in bad], unread


def _split(lines: Sequence[str]) -> tuple[list[list[str]], list[_Block], list[tuple[_Block, str]]]:
    """Splits the lines of a file into calendars and events.

    Returns the lines of each calendar without its events, the complete events, and the incomplete events with reasons.
    """
    frames: list[list[str]] = []
    blocks: list[_Block] = []
    unread: list[tuple[_Block, str]] = []
    block: _Block | None = None
    parts: list[str] = []
    for number, line in enumerate([*lines, "END:VCALENDAR"], 1):
        word = line.strip().upper() if line[:1] not in (" ", "\t") else ""
        if block is not None and word in ("BEGIN:VEVENT", "BEGIN:VCALENDAR", "END:VCALENDAR"):
            unread.append((block, "it has no end"))
            block = None
        if word == "BEGIN:VCALENDAR":
            frames.append([line])
        elif word == "BEGIN:VEVENT":
            if not frames:  # Some mail programs attach a file with an event outside any calendar.
                frames.append(["BEGIN:VCALENDAR"])
            block, parts = _Block(len(frames) - 1, number, [line]), []
        elif word == "END:VEVENT" and block is not None:
            block.lines.append(line)
            if parts:
                unread.append((block, f"its {parts[-1]} has no end"))
            else:
                blocks.append(block)
            block = None
        elif block is not None:
            block.lines.append(line)
            if word.startswith("BEGIN:"):
                parts.append(word.removeprefix("BEGIN:"))
            elif word.startswith("END:") and (not parts or parts.pop() != word.removeprefix("END:")):
                parts.append(word.removeprefix("END:"))
        elif frames and word not in ("END:VCALENDAR", "END:VEVENT"):
            frames[-1].append(line)
    return frames, blocks, unread


def _calendar(frame: Sequence[str], blocks: Iterable[_Block]) -> Any | None:
    """Parses the lines of a calendar (`frame`) with the given events. Returns None if they are unreadable."""
    lines = [*frame, *(line for block in blocks for line in block.lines), "END:VCALENDAR", ""]
    try:
        return Calendar.from_ical("\r\n".join(lines))
    except Exception:  # The parser raises exceptions of any type, such as KeyError, IndexError and RecursionError.
        return None


def _why_unreadable(block: _Block, until: datetime) -> str:
    """Returns the reason why an event cannot be imported with correct times, or an empty string if it can.

    Unreadable properties that do not affect the time are removed from the event.
    """
    if block.event is None:
        return "it is not iCalendar (RFC 5545)"
    for name, why in block.event.errors:
        if str(name).upper() in _TIME_PROPERTIES:
            return f"{name} cannot be read: {str(why).splitlines()[0][:200]}"
        if name is None and (_TIME_IN_LINE.search(str(why)) or _begins_like_a_time(block)):
            return f"a line cannot be read: {str(why).splitlines()[0][:200]}"
        if name is not None:
            block.event.pop(name, None)
    if "DTSTART" not in block.event:
        return "it has no DTSTART"
    for name in ("DTSTART", "DTEND", "RECURRENCE-ID"):
        value = block.event.get(name)
        if value is None:
            continue
        if isinstance(value, list):
            return f"it has several {name}"
        if not isinstance(value.dt, date):
            return f"its {name} is not a time"
        zone = value.params.get("TZID")
        if zone and isinstance(value.dt, datetime) and value.dt.tzinfo is None:
            return f"the time zone `{zone}` is unknown"
    rules = _RULE.findall("\n".join(_unfolded(block)))
    return next((why for rule in rules if (why := _why_unexpanded(rule, block.event["DTSTART"].dt, until))), "")


def _unfolded(block: _Block) -> list[str]:
    return re.sub(r"\n[ \t]", "", "\n".join(block.lines)).split("\n")


def _begins_like_a_time(block: _Block) -> bool:
    """Returns whether a line of the event cannot be parsed and begins with one of _TIME_PROPERTIES."""
    for line in _unfolded(block):
        if re.match(r"[A-Za-z-]*", line)[0].upper() in _TIME_PROPERTIES:  # type: ignore[index]  # The pattern matches any text.
            try:
                Contentline(line).parts()  # type: ignore[no-untyped-call]  # icalendar has no type annotations.
            except ValueError:
                return True
    return False


def _why_unexpanded(rule: str, start: date, until: datetime) -> str:
    """Returns the reason why a rule is not expanded, or an empty string if the rule is expanded.

    A rule is not expanded if it repeats too frequently, has too many occurrences, never occurs, or has an invalid
    INTERVAL or UNTIL.
    """
    words = (part.partition("=") for part in rule.upper().partition(":")[2].split(";"))
    parts = {key.strip(): value.strip() for key, _, value in words}
    per_day = prod(len(parts.get(key, "").split(",")) for key in _TIMES_OF_DAY)
    period = _PERIOD_S.get(parts.get("FREQ", ""), _DAY_S)
    has_condition = any(key.startswith("BY") for key in parts)
    has_end = "COUNT" in parts or "UNTIL" in parts
    interval = parts.get("INTERVAL", "1")
    if not re.fullmatch(r"0*[1-9]\d{0,8}", interval) or per_day > _PER_DAY:
        return f"it repeats more often than {_PER_DAY} times a day, or at no interval"
    if period < _DAY_S and (has_condition or not has_end):
        return f"it repeats more often than {_PER_DAY} times a day, or by hours without an end"
    last = until.replace(tzinfo=None)
    if match := re.match(r"(\d{4})(\d\d)(\d\d)", parts.get("UNTIL", "")):
        try:
            last = min(last, datetime(*map(int, match.groups())) + timedelta(days=2))  # type: ignore[arg-type]  # The pattern has three groups of digits.
        except (ValueError, OverflowError):
            return f"its rule cannot be read at UNTIL={parts['UNTIL'][:40]}"
    since = datetime(start.year, start.month, start.day)
    times = max(0.0, (last - since).total_seconds()) / period / int(interval) * per_day
    if re.fullmatch(r"\d{1,9}", parts.get("COUNT", "")):
        times = min(times, float(parts["COUNT"]))
    if times > MOST_REPEATED:
        return f"it repeats more than {MOST_REPEATED:,} times by {until:%Y-%m-%d}"
    if has_condition and not _comes_true(parts, since):
        return "its rule has no occurrences"
    return ""


def _comes_true(parts: Mapping[str, str], start: datetime) -> bool:
    """Returns whether a rule would have any occurrence if its UNTIL and COUNT were ignored; True for an invalid rule.

    For a rule without occurrences, dateutil would search up to the year 9999, which takes seconds. The Gregorian
    calendar repeats every 400 years, so the rule is first moved to a year between 9501 and 9900. The search then ends
    after at most a few hundred years.
    """
    late = start.replace(year=start.year + (_LATE - start.year) // 400 * 400)
    kept = ";".join(f"{key}={value}" for key, value in parts.items() if key not in ("UNTIL", "COUNT"))
    try:
        return next(iter(rrulestr(kept, dtstart=late)), None) is not None
    except Exception:  # An invalid rule is reported when it is expanded.
        return True


def _groups(blocks: Iterable[_Block], remarks: list[str]) -> list[list[_Block]]:
    """Groups each event with its changed occurrences (RECURRENCE-ID).

    If an event has several versions, the one with the highest SEQUENCE is used. If several versions have this SEQUENCE,
    the last one in the file is used. Different events with the same UID form separate groups. Skipped versions are
    added to `remarks`.
    """
    groups: dict[tuple[Any, ...], list[_Block]] = {}
    for block in blocks:
        groups.setdefault((block.calendar, str(block.event.get("uid", "")) or block.number), []).append(block)
    found: list[list[_Block]] = []
    for of_uid in groups.values():
        sequenced = len({_version(block) for block in of_uid if "RECURRENCE-ID" not in block.event}) > 1
        versions: dict[tuple[bool, str], _Block] = {}
        for block in sorted(of_uid, key=_version):
            identity = _identity(block, sequenced)
            if (older := versions.get(identity)) is not None:
                remarks.append(older.remark(f"left out, line {block.number} has the same event"))
            versions[identity] = block
        kept = sorted(versions.values(), key=lambda one: one.number)
        changed = [block for block in kept if "RECURRENCE-ID" in block.event]
        firsts = [block for block in kept if "RECURRENCE-ID" not in block.event]
        found += [[first, *(changed if place == 0 else [])] for place, first in enumerate(firsts)]
        if not firsts:
            found.append(changed)
    return found


def _identity(block: _Block, sequenced: bool) -> tuple[bool, str]:
    """Returns the key that distinguishes an event from other events with the same UID.

    A changed occurrence is identified by its RECURRENCE-ID, any other event by its start. If the events with the UID
    have different SEQUENCE numbers (`sequenced`), they are versions of one event and have the same key.
    """
    if "RECURRENCE-ID" in block.event:
        return True, str(block.event["RECURRENCE-ID"].dt)
    return False, "" if sequenced else str(block.event["DTSTART"].dt)


def _version(block: _Block) -> int:
    try:
        return int(block.event.get("SEQUENCE", 0))
    except (TypeError, ValueError):
        return 0


def _occurrences(calendar: Any, group: Sequence[_Block], zone: str, since: datetime, until: datetime) -> list[Any]:
    """Returns the events of a group between `since` and `until`, with recurring events expanded.

    Raises _Unreadable if the events cannot be expanded.
    """
    alone = Calendar()
    for key, value in calendar.items():
        alone[key] = value
    for component in (*calendar.subcomponents, *(block.event for block in group)):
        alone.add_component(component)
    try:
        query = recurring_ical_events.of(alone, components=["VEVENT"])
        found: dict[Any, Any] = {}
        begin, length = since.astimezone(zone_of(zone)), FIRST_LOOK
        # At most AT_MOST occurrences are imported, so the search stops once more than AT_MOST have been found.
        while len(found) <= AT_MOST and begin < until:
            end = min(until, begin + length) if until - begin > length else until
            for event in query.between(begin, end.astimezone(zone_of(zone))):
                found.setdefault((str(event["DTSTART"].dt), str(event.get("RECURRENCE-ID", ""))), event)
            begin, length = end, length * 2
        return list(found.values())
    except Exception as error:  # The library for recurring events raises exceptions of any type, like the parser.
        raise _Unreadable(str(error).splitlines()[0][:200] if str(error) else type(error).__name__) from None


def _times(event: Any, zone: str) -> tuple[datetime, datetime, bool]:
    start = event["DTSTART"].dt
    if "DTEND" in event:
        end = event["DTEND"].dt
    elif "DURATION" in event:
        end = start + event["DURATION"].dt
    else:
        end = start + timedelta(days=1) if not isinstance(start, datetime) else start
    return _utc(start, zone), _utc(end, zone), not isinstance(start, datetime)


def _begins(event: Any, zone: str) -> datetime:
    try:
        return _utc(event["DTSTART"].dt, zone)
    except OverflowError:
        return EVER[1]


def _utc(moment: date, zone: str) -> datetime:
    if not isinstance(moment, datetime):
        return to_utc(datetime.combine(moment, time()), zone)
    return whole_seconds(moment) if moment.tzinfo else to_utc(moment, zone)


def _zone(event: Any, zone: str) -> str:
    start = event["DTSTART"].dt
    named = event.get("x-torchyard-zone") or getattr(getattr(start, "tzinfo", None), "key", None)
    try:
        return zone_of(str(named)).key if named and named != "UTC" else zone
    except Refused:
        return zone


def _gpus(event: Any, slots: Sequence[Slot], otherwise: Sequence[str]) -> tuple[str, ...]:
    known = {slot.id for slot in slots}
    ours = tuple(word for word in str(event.get("x-torchyard-gpus", "")).split() if word)
    if ours and all(gpu in known for gpu in ours):
        return ours
    place = str(event.get("location", "")).strip()
    if place:
        try:
            return tuple(slot.id for slot in parse_slots(place, slots))
        except Refused:
            if not otherwise:
                raise
    if not otherwise:
        raise Refused("it names no GPU of this fleet", code="no_gpus", hint="Say which GPUs to book for it.")
    return tuple(otherwise)

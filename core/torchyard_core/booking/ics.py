"""Calendars of others: `.ics` files out and in.

Each booking is an event of its own in UTC, also those of a series: an occurrence that was moved, released or never
booked is then simply as it is. What iCalendar has no word for is in properties of ours (`X-TORCHYARD-…`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from typing import Any

import recurring_ical_events
from icalendar import Calendar, Event

from torchyard_core.booking.model import Booking, Draft, Slot, State, whole_seconds
from torchyard_core.booking.naming import name_slots, slots_named
from torchyard_core.booking.refusals import BadCalendar, Refused
from torchyard_core.booking.zones import to_utc, zone_of

AT_MOST = 1000
"""Events of one import."""
MAX_BYTES = 10_000_000
_ENDLESS = re.compile(r"(?im)^RRULE\b.*(FREQ=(SECONDLY|MINUTELY|HOURLY)|INTERVAL=0*(?![0-9]))")
"""Rules that would be expanded for minutes, or for ever; bookings repeat by days at the most."""
_HINT = "Export it anew from the calendar that made it."


@dataclass(frozen=True)
class Imported:
    """What an `.ics` file holds. `remarks` name events that were left out or changed, and why."""

    drafts: tuple[Draft, ...]
    remarks: tuple[str, ...]


def export_ics(bookings: Iterable[Booking], slots: Sequence[Slot]) -> str:
    """The bookings as one calendar (RFC 5545). Cancelled ones say so; released ones end when they were released."""
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
        event.add("location", name_slots(booking.gpus, slots))
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
    text: str | bytes,
    *,
    zone: str,
    since: datetime,
    until: datetime,
    slots: Sequence[Slot],
    gpus: Sequence[str] = (),
) -> Imported:
    """Drafts of the file's events that end after `since` and begin before `until`, repeated ones expanded.

    An event's GPUs are those that it was exported with, else those that its place names (`gpu-b:2-5`), else `gpus`;
    without any it is left out with a remark. Times without a zone, and whole days, are of `zone`. Raises BadCalendar.
    """
    zone_of(zone)
    drafts: list[Draft] = []
    remarks: list[str] = []
    for event in _events(text, zone, since, until):
        title = str(event.get("summary", "")).strip() or "imported"
        if len(drafts) >= AT_MOST:
            remarks.append(f"more than {AT_MOST} events: the later ones were left out")
            break
        if str(event.get("status", "")).upper() == "CANCELLED":
            continue
        try:
            start, end, whole_days = _times(event, zone)
            chosen = _gpus(event, slots, gpus)
            own_zone = _zone(event, zone)
        except (Refused, ValueError, OverflowError) as error:
            remarks.append(f"{title}: left out, {error}")
            continue
        if end <= start:
            remarks.append(f"{title}: left out, it lasts no time")
        elif end > since:
            if whole_days:
                remarks.append(f"{title}: a whole day, taken from midnight to midnight in {zone}")
            purpose = str(event.get("description", ""))[:5000]
            uid = str(event.get("uid", ""))
            drafts.append(Draft(title[:200], chosen, start, end, own_zone, purpose, uid=uid))
    return Imported(tuple(sorted(drafts, key=lambda one: (one.start, one.uid))), tuple(remarks))


def _events(text: str | bytes, zone: str, since: datetime, until: datetime) -> list[Any]:
    if len(text) > MAX_BYTES:
        raise BadCalendar(f"the calendar is larger than {MAX_BYTES // 1_000_000} MB", hint="Export fewer days of it.")
    try:
        content = text.decode("utf-8-sig") if isinstance(text, bytes) else text.removeprefix("\ufeff")
        if "BEGIN:VCALENDAR" not in content.upper():
            raise ValueError("it has no BEGIN:VCALENDAR")
        if len(re.findall(r"(?im)^BEGIN:VEVENT", content)) != len(re.findall(r"(?im)^END:VEVENT", content)):
            raise ValueError("an event in it has no end")
        if _ENDLESS.search(re.sub(r"\r?\n[ \t]", "", content)):
            raise ValueError("an event in it repeats more often than daily, or at no interval")
        calendars = Calendar.from_ical(content, multiple=True)
        found: list[Any] = []
        for calendar in calendars:
            query = recurring_ical_events.of(calendar, components=["VEVENT"])
            found += query.between(since.astimezone(zone_of(zone)), until.astimezone(zone_of(zone)))
        return found
    except RecursionError:
        raise BadCalendar("the calendar cannot be read: it is nested too deep", hint=_HINT) from None
    except Exception as error:  # the parsers raise whatever their parts do: KeyError, IndexError, AttributeError …
        why = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise BadCalendar(f"the calendar cannot be read: {why}", hint=_HINT) from None


def _times(event: Any, zone: str) -> tuple[datetime, datetime, bool]:
    start = event["DTSTART"].dt
    if "DTEND" in event:
        end = event["DTEND"].dt
    elif "DURATION" in event:
        end = start + event["DURATION"].dt
    else:
        end = start + timedelta(days=1) if not isinstance(start, datetime) else start
    return _utc(start, zone), _utc(end, zone), not isinstance(start, datetime)


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
            return tuple(slot.id for slot in slots_named(place, slots))
        except Refused:
            if not otherwise:
                raise
    if not otherwise:
        raise Refused("it names no GPU of this fleet", code="no_gpus", hint="Say which GPUs to book for it.")
    return tuple(otherwise)

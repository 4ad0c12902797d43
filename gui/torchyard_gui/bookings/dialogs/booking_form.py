"""Parses and formats the fields of the booking dialog. Does not depend on Qt."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from torchyard_core.booking.errors import Refused
from torchyard_core.booking.model import Draft, Slot
from torchyard_core.booking.slots import format_slots, parse_slots
from torchyard_core.booking.time_parser import end_moment, moment, zone_of
from torchyard_core.formatting import wall_clock
from torchyard_gui.bridge.bookings_model import CalendarState


@dataclass(frozen=True)
class Fields:
    """The contents of the fields as text."""

    title: str
    gpus: str
    start: str
    end: str
    zone: str
    purpose: str = ""
    stop_at_end: bool = False


def read(fields: Fields, slots: Sequence[Slot], now: datetime) -> Draft | dict[str, Refused]:
    """Parses the fields into a draft. If any field is invalid, returns the problem of each invalid field instead:
    "title", "gpus", "start", "end" or "zone".

    The end may be given as a duration after the start, such as `+4h`.
    """
    wrong: dict[str, Refused] = {}
    if not fields.title.strip():
        wrong["title"] = Refused(
            "the booking has no title", code="no_title", hint="Say in a word or two what it is for."
        )
    gpus: tuple[str, ...] = ()
    try:
        gpus = tuple(slot.id for slot in parse_slots(fields.gpus, slots))
    except Refused as refused:
        wrong["gpus"] = refused
    try:
        zone_of(fields.zone.strip())
    except Refused as refused:
        wrong["zone"] = refused
        return wrong
    start = end = now
    try:
        start = moment(fields.start, fields.zone.strip(), now)
    except Refused as refused:
        wrong["start"] = refused
    try:
        end = end_moment(fields.end, start, fields.zone.strip(), now)
    except Refused as refused:
        wrong["end"] = refused
    if "start" not in wrong and "end" not in wrong and end <= start:
        wrong["end"] = Refused("the booking ends at or before its start", code="end_before_start")
    if wrong:
        return wrong
    return Draft(
        fields.title.strip(),
        gpus,
        start,
        end,
        fields.zone.strip(),
        fields.purpose.strip(),
        stop_at_end=fields.stop_at_end,
    )


def format_time(when: datetime, zone: str) -> str:
    """Formats a time in a zone as `2026-11-23 09:00`. Seconds are included unless they are zero."""
    local = when.astimezone(zone_of(zone))
    return wall_clock(when, zone, "%Y-%m-%d %H:%M:%S" if local.second else "%Y-%m-%d %H:%M")


def command_for(gpus: Sequence[str], start: datetime, end: datetime, title: str, seen: CalendarState) -> str:
    """Returns the command line that would create the same booking, quoted for a shell.

    Example: `torchyard book gpu-a:0-1 --from … --to … --zone … --title …`
    """
    names = format_slots(gpus, seen.slots).replace(", ", ",")
    times = ["--from", format_time(start, seen.zone), "--to", format_time(end, seen.zone), "--zone", seen.zone]
    return shlex.join(["torchyard", "book", names, *times, "--title", title])

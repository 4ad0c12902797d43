"""Parses pasted bookings such as `gpu-b:2-5 tomorrow 9-17`. Does not depend on Qt."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime, timedelta

from torchyard_core.booking.errors import Refused
from torchyard_core.booking.model import Draft, Slot
from torchyard_core.booking.slots import parse_slots
from torchyard_core.booking.time_parser import instant, length, moment, zone_of

_RANGE = re.compile(r"(\d{1,2}(?::\d{2})?)\s*(?:-|–|to|bis|~)\s*(\d{1,2}(?::\d{2})?)")
_DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_HINT = "Write GPUs and a time: gpu-b:2-5 tomorrow 9-17, or gpu-a:0 now for 4h."


def read_draft(text: str, slots: Sequence[Slot], zone: str, now: datetime, title: str) -> Draft:
    """Parses one line into a draft.

    The line contains GPUs, optionally a day (by default today; a weekday means its next occurrence, which may be
    today), and a start with an end or a length. A length without a start begins now. The remaining text is the title,
    by default `title`.

    Raises:
        Refused: The line cannot be parsed.
    """
    words = text.split()
    hosts = {slot.host for slot in slots}
    ids = {slot.id for slot in slots}
    count = 0
    while count < len(words) and _names_gpus(words[count], hosts, ids, after=count > 0):
        count += 1
    if not count:
        raise Refused(f"“{_short(text)}” does not begin with GPUs", code="bad_paste", hint=_HINT)
    gpus = tuple(slot.id for slot in parse_slots(" ".join(words[:count]), slots))
    start, end, rest = _time(" ".join(words[count:]), zone, now)
    return Draft(rest or title, gpus, start, end, zone)


def _names_gpus(word: str, hosts: set[str], ids: set[str], *, after: bool) -> bool:
    word = word.rstrip(",")
    return word in ids or word.partition(":")[0] in hosts or (not after and ":" in word and not word[0].isdigit())


def _time(text: str, zone: str, now: datetime) -> tuple[datetime, datetime, str]:
    day, rest = _day(text.strip(), zone, now)
    if match := _RANGE.match(rest):
        start, end = (_clock(day, part, zone) for part in match.groups())
        if end <= start:
            end = _clock(day + timedelta(days=1), match[2], zone)
        return start, end, _title(rest[match.end() :])
    match = re.match(r"(now|\d{1,2}(?::\d{2})?)?\s*(?:for\s+)?(\d+(?:\.\d+)?\s*(?:min|m|h|d|w))\b", rest)
    if match:
        begins = match[1] or "now"
        start = moment("now", zone, now) if begins == "now" else _clock(day, begins, zone)
        return start, start + length(match[2]), _title(rest[match.end() :])
    raise Refused(f"“{_short(text)}” names no time", code="bad_time", hint=_HINT)


def _day(text: str, zone: str, now: datetime) -> tuple[datetime, str]:
    today = now.astimezone(zone_of(zone)).replace(hour=0, minute=0, second=0, microsecond=0, tzinfo=None)
    match = re.match(r"(today|tomorrow|\d{4}-\d{2}-\d{2}|(?:mon|tue|wed|thu|fri|sat|sun)[a-z]*)\b[ ,T]*", text, re.I)
    if not match:
        return today, text
    word, rest = match[1].lower(), text[match.end() :]
    if word in ("today", "tomorrow"):
        return today + timedelta(days=word == "tomorrow"), rest
    if word[0].isdigit():
        try:
            return datetime.fromisoformat(word), rest
        except ValueError:
            raise Refused(f"there is no day {word}", code="bad_time", hint=_HINT) from None
    return today + timedelta(days=(_DAYS.index(word[:3]) - today.weekday()) % 7), rest


def _clock(day: datetime, text: str, zone: str) -> datetime:
    hour, _, minute = text.partition(":")
    if int(hour) > 24 or int(minute or 0) > 59 or (int(hour) == 24 and int(minute or 0)):
        raise Refused(f"{text} is not a time of day", code="bad_time", hint=_HINT)
    return instant(day + timedelta(hours=int(hour), minutes=int(minute or 0)), zone)


def _title(rest: str) -> str:
    return rest.strip(" ,:·-")[:200]


def _short(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:39]}…"

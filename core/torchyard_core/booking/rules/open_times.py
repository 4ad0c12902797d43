"""The open times rule, which limits the times at which a group of users may book certain GPUs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, time, timedelta
from fnmatch import fnmatchcase
from typing import Any

from torchyard_core.booking.errors import Refused
from torchyard_core.booking.intervals import Interval, merge, subtract
from torchyard_core.booking.model import Slot
from torchyard_core.booking.rules.rule import FormField, Request, Rule, SharedSettings, lines_of, refuse_unknown_keys
from torchyard_core.booking.slots import format_slots
from torchyard_core.booking.time_parser import to_utc, zone_of
from torchyard_core.errors import UsageError
from torchyard_core.problems import did_you_mean

EVERYBODY = "*"
DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")


@dataclass(frozen=True)
class Window:
    """Times at which a group may book GPUs.

    If any windows apply to a GPU and a person, the person may book the GPU while one of the windows is open. If no
    window applies, the person may book the GPU at any time.
    """

    gpus: tuple[str, ...] = (EVERYBODY,)
    """Patterns of hosts (`gpu-*`), slots (`gpu-b:0`) or slot IDs."""
    group: str = EVERYBODY
    zone: str = "UTC"
    days: tuple[int, ...] = (0, 1, 2, 3, 4, 5, 6)
    """The days on which the window opens; 0 is Monday. A window without days never opens."""
    opens: str = "00:00"
    closes: str = "24:00"
    """The closing time, which is on the next day unless it is after `opens`."""

    def names(self, slot: Slot) -> bool:
        """Returns whether a pattern of `gpus` matches the slot."""
        return any(fnmatchcase(word, pattern) for pattern in self.gpus for word in (slot.host, slot.name, slot.id))

    def openings(self, within: Interval) -> Iterator[Interval]:
        """Yields all open times that overlap `within`, and possibly some before or after `within`, in UTC.

        A window opens and closes at the same local times before and after a clock change.
        """
        zone = zone_of(self.zone)
        day = within.start.astimezone(zone).date() - timedelta(days=1)
        last = within.end.astimezone(zone).date()
        opens, closes = minutes_of(self.opens), minutes_of(self.closes)
        length = closes - opens if closes > opens else closes - opens + 24 * 60
        while day <= last:
            if day.weekday() in self.days:
                start = datetime.combine(day, time()) + timedelta(minutes=opens)
                yield Interval(to_utc(start, self.zone), to_utc(start + timedelta(minutes=length), self.zone))
            day += timedelta(days=1)

    def __str__(self) -> str:
        if not self.days:
            return "never"
        days = "daily" if len(self.days) == 7 else ", ".join(DAYS[day] for day in sorted(self.days))
        return f"{days} {self.opens} to {self.closes} ({self.zone})"


@dataclass(frozen=True)
class OpenTimesSettings(SharedSettings):
    """Open times, and the groups of users to which they refer."""

    windows: tuple[Window, ...] = ()
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def check_windows(
    gpus: Sequence[str], interval: Interval, rules: OpenTimesSettings, person: str, slots: Sequence[Slot]
) -> Refused | None:
    """Returns a refusal if the open times do not allow the person to book every GPU for the whole interval."""
    known = {slot.id: slot for slot in slots}
    for gpu in gpus:
        binding = binding_windows(known[gpu], rules, person)
        if binding and outside(interval, binding):
            message = f"{format_slots([gpu], slots)} cannot be booked by {person} for all of that time"
            return Refused(message, code="window", hint=f"It is open: {'; '.join(map(str, binding))}.")
    return None


def binding_windows(slot: Slot, rules: OpenTimesSettings, person: str) -> list[Window]:
    """Returns the windows that apply to a person on a slot. If no windows apply, the slot is always open."""
    return [
        window
        for window in rules.windows
        if window.names(slot) and (window.group == EVERYBODY or person in rules.groups.get(window.group, ()))
    ]


def outside(interval: Interval, binding: Sequence[Window]) -> list[Interval]:
    """Returns the parts of the interval in which none of the windows is open."""
    return subtract([interval], merge(opening for window in binding for opening in window.openings(interval)))


def minutes_of(clock: str) -> int:
    """Parses `HH:MM` to minutes after midnight; 24:00 is the end of the day. Raises UsageError if it is invalid."""
    match = re.fullmatch(r"(\d{1,2}):(\d{2})", clock)
    minutes = int(match[1]) * 60 + int(match[2]) if match and int(match[2]) < 60 else 24 * 60 + 1
    if minutes > 24 * 60:
        raise UsageError(f"`{clock}` is not a time of day", code="bad_rules", hint="Write it as 09:00.")
    return minutes


def _check(rules: OpenTimesSettings, request: Request) -> Refused | None:
    draft = request.draft
    return check_windows(draft.gpus, request.added or draft.interval, rules, request.owner, request.slots)


def _validate(rules: OpenTimesSettings) -> None:
    for window in rules.windows:
        texts = (*window.gpus, window.group, window.zone, window.opens, window.closes)
        if not all(isinstance(one, str) for one in texts):
            raise UsageError("a window has texts for its GPUs, group, zone and times of day", code="bad_rules")
        zone_of(window.zone)
        minutes_of(window.opens)
        minutes_of(window.closes)
        if any(day not in range(7) for day in window.days):
            raise UsageError("the days of a window are 0 (Monday) to 6 (Sunday)", code="bad_rules")
        if window.group != EVERYBODY and window.group not in rules.groups:
            near = did_you_mean(window.group, rules.groups)
            raise UsageError(f"a window names the group `{window.group}`, which is not there{near}", code="bad_rules")


def _parse_window(data: Mapping[str, Any]) -> Window:
    refuse_unknown_keys(data, Window, "window")
    values: dict[str, Any] = {key: tuple(value) if key in ("days", "gpus") else value for key, value in data.items()}
    return Window(**values)


def _parse_groups(data: Any) -> dict[str, tuple[str, ...]]:
    return {str(name): tuple(map(str, persons)) for name, persons in dict(data).items()}


def _write_window(window: Window) -> str:
    days = "never" if not window.days else "daily" if len(window.days) == 7 else ",".join(DAYS[d] for d in window.days)
    who = "everybody" if window.group == EVERYBODY else window.group
    return f"{' '.join(window.gpus)} | {who} | {days} | {window.opens}-{window.closes} | {window.zone}"


def _read_window(line: str) -> dict[str, Any]:
    parts = [part.strip() for part in line.split("|")]
    hint = "Write gpu-a:* | students | Mon,Tue | 09:00-18:00 | Europe/Berlin."
    if len(parts) != 5:
        raise UsageError(f"the open time `{line}` does not have five parts", code="bad_rules", hint=hint)
    gpus, who, days, times, zone = parts
    opens, dash, closes = times.partition("-")
    if not dash:
        raise UsageError(f"`{times}` is not a time from and to", code="bad_rules", hint=hint)
    return {
        "gpus": gpus.split(),
        "group": EVERYBODY if who == "everybody" else who,
        "days": _read_days(days),
        "opens": opens.strip(),
        "closes": closes.strip(),
        "zone": zone,
    }


def _read_days(text: str) -> list[int]:
    if text in ("daily", "never"):
        return list(range(7)) if text == "daily" else []
    names = [name.strip()[:3].title() for name in text.split(",")]
    unknown = [name for name in names if name not in DAYS]
    if unknown:
        raise UsageError(f"there is no day `{unknown[0]}`", code="bad_rules", hint="Write daily, never, or Mon,Tue.")
    return sorted(DAYS.index(name) for name in names)


def _write_groups(groups: Mapping[str, Sequence[str]]) -> str:
    return "\n".join(f"{name}: {', '.join(persons)}" for name, persons in sorted(groups.items()))


def _read_groups(text: str) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for line in lines_of(text):
        name, colon, persons = line.partition(":")
        if not colon or not name.strip():
            raise UsageError(f"the group `{line}` cannot be read", code="bad_rules", hint="Write students: kim, lee.")
        groups[name.strip()] = [person.strip() for person in persons.split(",") if person.strip()]
    return groups


RULE = Rule(
    form=(
        FormField("groups", "Groups", _write_groups, _read_groups, example="students: kim, lee", is_multiline=True),
        FormField(
            "windows",
            "Open times",
            lambda windows: "\n".join(map(_write_window, windows)),
            lambda text: [_read_window(line) for line in lines_of(text)],
            example="gpu-a:* gpu-b:0 | students | Mon,Tue | 09:00-18:00 | Europe/Berlin",
            is_multiline=True,
        ),
    ),
    check=_check,
    codes=("window",),
    validate=_validate,
    parsers={"windows": lambda entries: tuple(map(_parse_window, entries)), "groups": _parse_groups},
)

"""The team's rules, as a value and pure functions: each gives a refusal in plain words, or None."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime, time, timedelta
from fnmatch import fnmatchcase
from typing import Any

from torchyard_agent.protocol.calendar import LEVELS
from torchyard_core.booking.errors import Refused
from torchyard_core.booking.intervals import Interval, merge, subtract
from torchyard_core.booking.model import Booking, Draft, Slot, State, is_cpu_id
from torchyard_core.booking.slots import name_slots
from torchyard_core.booking.time_parser import END_OF_TIME, to_utc, zone_of
from torchyard_core.errors import UsageError
from torchyard_core.problems import did_you_mean

GRACE = timedelta(minutes=2)
"""A booking may begin this long ago: it takes a moment to fill in a dialog whose start is *now*."""
EVERYBODY = "*"
LONGEST_GRACE_S = 7 * 86400
_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")


@dataclass(frozen=True)
class Window:
    """When a group of persons may book GPUs. It binds only whom and what it names; several windows add up.

    `gpus` are patterns of a host (`gpu-*`), a slot (`gpu-b:0`) or an id; `days` those on which it opens (0 is Monday);
    one whose `closes` is not after `opens` closes on the next day. One with no days closes these GPUs to the group.
    """

    gpus: tuple[str, ...] = (EVERYBODY,)
    group: str = EVERYBODY
    zone: str = "UTC"
    days: tuple[int, ...] = (0, 1, 2, 3, 4, 5, 6)
    opens: str = "00:00"
    closes: str = "24:00"

    def names(self, slot: Slot) -> bool:
        return any(fnmatchcase(word, pattern) for pattern in self.gpus for word in (slot.host, slot.name, slot.id))

    def openings(self, within: Interval) -> Iterator[Interval]:
        """When it is open around `within`, in UTC: local times, so that they stay where they are over a DST night."""
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
        days = "daily" if len(self.days) == 7 else ", ".join(_DAYS[day] for day in sorted(self.days))
        return f"{days} {self.opens} to {self.closes} ({self.zone})"


@dataclass(frozen=True)
class Enforcement:
    """What agents do about processes on GPUs that somebody else has booked. The first whose `host` fits holds.

    `off`, `observe` (noted in the host's audit), `warn` (its owner is told), `stop` (told, and ended `grace_s` later).
    With `dry_run` it is only noted what would have been done.
    """

    host: str = EVERYBODY
    """A pattern of host names."""
    level: str = "observe"
    grace_s: float = 300
    dry_run: bool = True


@dataclass(frozen=True)
class Rules:
    """What admins set for all. None is no limit; hours are counted in UTC."""

    longest_h: float | None = 168
    furthest_days: float | None = 90
    shortest_min: float = 15
    quota_gpu_hours: float | None = None
    """GPU-hours of a person in a week (Monday to Monday in `zone`)."""
    quotas: Mapping[str, float] = field(default_factory=dict)
    """Of persons who have another quota."""
    same_day_is_free: bool = True
    """What a booking takes of the day (in `zone`) on which it is made needs no quota: those GPUs would stay empty."""
    windows: tuple[Window, ...] = ()
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    zone: str = "UTC"
    idle_release_min: float | None = 30
    """A booking whose GPUs stay idle this long frees itself."""
    enforcement: tuple[Enforcement, ...] = ()
    """By hosts; agents do nothing where none fits."""

    def quota_of(self, person: str) -> float | None:
        return self.quotas.get(person, self.quota_gpu_hours)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Rules:
        """Raises UsageError for a key that no rule has, or a value of the wrong kind."""
        _known(data, Rules, "rule")
        windows = tuple(_window(entry) for entry in data.get("windows", ()))
        groups = {str(name): tuple(map(str, persons)) for name, persons in dict(data.get("groups", {})).items()}
        enforcement = tuple(_enforcement(entry) for entry in data.get("enforcement", ()))
        quotas = dict(data.get("quotas", {}))
        rules = Rules(**{**data, "windows": windows, "groups": groups, "quotas": quotas, "enforcement": enforcement})
        _checked(rules)
        return rules


def _window(data: Mapping[str, Any]) -> Window:
    _known(data, Window, "window")
    days = {"days": tuple(data["days"])} if "days" in data else {}
    gpus = {"gpus": tuple(data["gpus"])} if "gpus" in data else {}
    return Window(**{**data, **days, **gpus})


def _enforcement(data: Mapping[str, Any]) -> Enforcement:
    _known(data, Enforcement, "key of an enforcement")
    one = Enforcement(**data)
    if one.level not in LEVELS:
        raise UsageError(f"enforcement has the levels {', '.join(LEVELS)}, not {one.level!r}", code="bad_rules")
    is_number = isinstance(one.grace_s, int | float) and not isinstance(one.grace_s, bool)
    if not is_number or not 0 <= one.grace_s <= LONGEST_GRACE_S:
        raise UsageError("the grace of an enforcement is a number of seconds, up to a week", code="bad_rules")
    if not isinstance(one.dry_run, bool) or not isinstance(one.host, str) or not one.host:
        raise UsageError("an enforcement names a host, and dry_run is true or false", code="bad_rules")
    return one


def _known(data: Mapping[str, Any], kind: type[Rules] | type[Window] | type[Enforcement], what: str) -> None:
    names = [one.name for one in fields(kind)]
    for key in data:
        if key not in names:
            raise UsageError(f"there is no {what} `{key}`{did_you_mean(str(key), names)}", code="unknown_rule")


def _checked(rules: Rules) -> None:
    numbers: dict[str, Any] = {
        name: getattr(rules, name)
        for name in ("longest_h", "furthest_days", "shortest_min", "quota_gpu_hours", "idle_release_min")
    }
    numbers |= {f"quotas.{person}": quota for person, quota in rules.quotas.items()}
    for name, value in numbers.items():
        optional = name != "shortest_min" and value is None
        if not optional and (not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < 1e6):
            raise UsageError(f"the rule {name} must be a number of 0 or more, not {value!r}", code="bad_rules")
    try:
        zone_of(rules.zone)
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
                raise UsageError(
                    f"a window names the group `{window.group}`, which is not there{near}", code="bad_rules"
                )
    except Refused as refused:
        raise UsageError(refused.message, code="bad_rules", hint=refused.hint) from None


def minutes_of(clock: str) -> int:
    """Minutes after midnight of `HH:MM`; 24:00 is the day's end. Raises UsageError."""
    match = re.fullmatch(r"(\d{1,2}):(\d{2})", clock)
    minutes = int(match[1]) * 60 + int(match[2]) if match and int(match[2]) < 60 else 24 * 60 + 1
    if minutes > 24 * 60:
        raise UsageError(f"`{clock}` is not a time of day", code="bad_rules", hint="Write it as 09:00.")
    return minutes


def check(
    draft: Draft,
    rules: Rules,
    now: datetime,
    person: str,
    hours: Mapping[datetime, float],
    slots: Sequence[Slot],
) -> Refused | None:
    """The first rule that refuses a new booking. `hours`: the person's GPU-hours, by start of the week."""
    return (
        shape(draft, slots)
        or _not_past(draft, now)
        or lengths(draft.interval, rules, now)
        or windows(draft.gpus, draft.interval, rules, person, slots)
        or quota(draft, rules, now, person, hours)
    )


def shape(draft: Draft, slots: Sequence[Slot]) -> Refused | None:
    """What no booking can be, whatever the rules."""
    try:
        zone_of(draft.zone)
    except Refused as refused:
        return refused
    if not draft.title.strip():
        return Refused("the booking has no title", code="no_title", hint="Say in a word or two what it is for.")
    if len(draft.title) > 200 or len(draft.purpose) > 5000:
        return Refused(
            "the title or the purpose is too long", code="too_long_text", hint="At most 200 and 5,000 letters."
        )
    if not draft.gpus:
        return Refused("the booking names no GPU", code="no_gpus", hint="Choose at least one.")
    known = {slot.id for slot in slots}
    unknown = [gpu for gpu in draft.gpus if gpu not in known]
    if unknown:
        near = did_you_mean(unknown[0], known)
        return Refused(
            f"no host of the fleet has the GPU `{unknown[0]}`{near}",
            code="unknown_gpu",
            hint="`torchyard hosts check` finds what each host has now.",
        )
    if len(draft.uid) > 1000 or draft.end.year >= END_OF_TIME:
        return Refused(
            "the UID is too long, or the end too late",
            code="bad_value",
            hint=f"A UID has at most 1,000 letters, and a booking ends before the year {END_OF_TIME}.",
        )
    if draft.end <= draft.start:
        return Refused(
            "the booking does not end after its start", code="end_before_start", hint="Give it an end after its start."
        )
    return None


def _not_past(draft: Draft, now: datetime) -> Refused | None:
    if draft.start >= now - GRACE:
        return None
    return Refused("the booking begins in the past", code="past", hint="The earliest start is now.")


def lengths(interval: Interval, rules: Rules, now: datetime) -> Refused | None:
    """Shortest, longest, furthest ahead."""
    length = interval.duration
    if length < timedelta(minutes=rules.shortest_min):
        hint = f"Book at least until {_clock(interval.start + timedelta(minutes=rules.shortest_min), rules)}."
        return Refused(f"a booking is at least {rules.shortest_min:g} min long", code="too_short", hint=hint)
    if rules.longest_h is not None and length > timedelta(hours=rules.longest_h):
        end = _clock(interval.start + timedelta(hours=rules.longest_h), rules)
        hint = f"End it by {end}; what comes after is another booking."
        return Refused(f"a booking is at most {_hours(rules.longest_h)} long", code="too_long", hint=hint)
    if rules.furthest_days is not None and interval.end > now + timedelta(days=rules.furthest_days):
        hint = f"It may end by {_clock(now + timedelta(days=rules.furthest_days), rules)}."
        return Refused(f"bookings are made at most {rules.furthest_days:g} days ahead", code="too_far", hint=hint)
    return None


def quota(draft: Draft, rules: Rules, now: datetime, person: str, hours: Mapping[datetime, float]) -> Refused | None:
    """GPU-hours of the person in each week that the booking touches. A draft without GPUs costs nothing."""
    limit = rules.quota_of(person)
    gpus = sum(not is_cpu_id(gpu) for gpu in draft.gpus)
    if limit is None or not gpus:
        return None
    for week, seconds in sorted(charged(draft.interval, rules, now).items()):
        has, extra = hours.get(week, 0.0), seconds * gpus / 3600
        if has + extra > limit + 1e-9:
            left = max(limit - has, 0.0)
            hint = f"Book {_hours(left / gpus)} or less of these GPUs, fewer GPUs, or another week."
            if left < rules.shortest_min / 60:
                hint = "Release another booking of that week, or take another week."
            if rules.same_day_is_free:
                hint += " What is booked for the same day needs no quota."
            begin = week.astimezone(zone_of(rules.zone))
            return Refused(
                f"{person} has {has:.4g} of {limit:g} GPU-hours in the week of {begin.day} {begin:%b}, "
                f"and this booking takes {extra:.4g} more",
                code="quota",
                hint=hint,
            )
    return None


def charged(interval: Interval, rules: Rules, now: datetime) -> dict[datetime, float]:
    """Seconds of a booking that a quota counts, by start of the week: not those of the day on which it is made, where
    that is free. Days and weeks are those of the team's zone, whatever zone the client writes times in."""
    parts = subtract([interval], [day_of(now, rules.zone)]) if rules.same_day_is_free else [interval]
    seconds: dict[datetime, float] = {}
    for part in parts:
        for week, much in by_week(part, rules.zone).items():
            seconds[week] = seconds.get(week, 0.0) + much
    return seconds


def windows(
    gpus: Sequence[str], interval: Interval, rules: Rules, person: str, slots: Sequence[Slot]
) -> Refused | None:
    """Whether these GPUs may be booked by that person at that time."""
    known = {slot.id: slot for slot in slots}
    for gpu in gpus:
        binding = binding_windows(known[gpu], rules, person)
        if binding and outside(interval, binding):
            return Refused(
                f"{name_slots([gpu], slots)} cannot be booked by {person} for all of that time",
                code="window",
                hint=f"It is open: {'; '.join(map(str, binding))}.",
            )
    return None


def binding_windows(slot: Slot, rules: Rules, person: str) -> list[Window]:
    """Those that bind the person on this slot; none means that it is always open."""
    return [
        window
        for window in rules.windows
        if window.names(slot) and (window.group == EVERYBODY or person in rules.groups.get(window.group, ()))
    ]


def outside(interval: Interval, binding: Sequence[Window]) -> list[Interval]:
    """What of the interval no window opens."""
    return subtract([interval], merge(opening for window in binding for opening in window.openings(interval)))


def check_change(
    booking: Booking, wanted: Draft, rules: Rules, now: datetime, hours: Mapping[datetime, float], slots: Sequence[Slot]
) -> Refused | None:
    """The first rule that refuses to change a booking into `wanted`. The past is immutable; a running booking can be
    shortened or extended, not moved. `hours` are those of the owner's other bookings.
    """
    if refused := changeable(booking, now) or shape(wanted, slots):
        return refused
    moved = (wanted.start, wanted.end, wanted.gpus) != (booking.start, booking.end, booking.gpus)
    if not moved:
        return None
    if booking.start > now:
        return check(wanted, rules, now, booking.owner, hours, slots)
    if wanted.start != booking.start or wanted.gpus != booking.gpus:
        return Refused(
            "the booking has begun: it can be shortened or extended, not moved",
            code="running",
            hint="Release it, and book the other time or GPUs anew.",
        )
    if wanted.end < now:
        return Refused("the booking would end in the past", code="past", hint="Release it: that ends it now.")
    if wanted.end < booking.end:
        return None
    return (
        lengths(wanted.interval, rules, now)
        or windows(wanted.gpus, Interval(booking.end, wanted.end), rules, booking.owner, slots)
        or quota(wanted, rules, now, booking.owner, hours)
    )


def changeable(booking: Booking, now: datetime) -> Refused | None:
    """Whether a booking is not yet history."""
    if not booking.is_live:
        how = {State.RELEASED: "released", State.CANCELLED: "cancelled", State.NO_SHOW: "freed, as nobody used it"}
        return Refused(f"the booking {booking.title!r} was {how[booking.state]}", code="ended", hint="Book anew.")
    if booking.end <= now:
        return Refused(
            f"the booking {booking.title!r} has ended: the past stays as it was", code="ended", hint="Book anew."
        )
    return None


def by_week(interval: Interval, zone: str) -> dict[datetime, float]:
    """Seconds of the interval in each week (Monday 00:00 of the zone), by the week's start in UTC."""
    seconds: dict[datetime, float] = {}
    start = interval.start
    while start < interval.end:
        week = week_of(start, zone)
        end = min(interval.end, _after(week, zone, 7))
        seconds[week] = (end - start).total_seconds()
        start = end
    return seconds


def week_of(moment: datetime, zone: str) -> datetime:
    """When the moment's week began, in UTC."""
    local = moment.astimezone(zone_of(zone))
    monday = local.date() - timedelta(days=local.weekday())
    return to_utc(datetime.combine(monday, time()), zone)


def _after(moment: datetime, zone: str, days: int) -> datetime:
    local = moment.astimezone(zone_of(zone))
    return to_utc(datetime.combine(local.date() + timedelta(days=days), time()), zone)


def day_of(moment: datetime, zone: str) -> Interval:
    """The moment's local day."""
    start = to_utc(datetime.combine(moment.astimezone(zone_of(zone)).date(), time()), zone)
    return Interval(start, _after(start, zone, 1))


def _clock(moment: datetime, rules: Rules) -> str:
    local = moment.astimezone(zone_of(rules.zone))
    return f"{local:%a} {local.day} {local:%b %H:%M} ({rules.zone})"


def _hours(hours: float) -> str:
    return f"{hours:.4g} h" if hours < 48 or hours % 24 else f"{hours / 24:g} days"

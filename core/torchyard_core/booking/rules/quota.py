"""The quota rule, which limits the GPU-hours that a person may book in a week."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from torchyard_core.booking.errors import Refused
from torchyard_core.booking.intervals import Interval, subtract
from torchyard_core.booking.model import Booking, Draft, is_cpu_id
from torchyard_core.booking.rules.rule import (
    FormField,
    Rule,
    SharedSettings,
    check_number,
    hours_text,
    number_field,
    read_number,
)
from torchyard_core.booking.time_parser import zone_of
from torchyard_core.booking.zone_weeks import by_week, day_of
from torchyard_core.errors import UsageError


@dataclass(frozen=True)
class QuotaSettings(SharedSettings):
    """Settings of quotas. A quota of None means no limit. Weeks (from Monday) and days refer to the team's `zone`."""

    quota_gpu_hours: float | None = None
    """GPU-hours that each person may book per week."""
    quotas: Mapping[str, float] = field(default_factory=dict)
    """Quotas that replace `quota_gpu_hours` for individual users, by name."""
    same_day_is_free: bool = True
    """Whether the part of a new or changed booking that falls on the current day is exempt from quotas.

    This lets users book GPUs that would otherwise be idle.
    """

    def quota_of(self, person: str) -> float | None:
        return self.quotas.get(person, self.quota_gpu_hours)


def check_quota(
    draft: Draft, rules: QuotaSettings, now: datetime, person: str, hours: Mapping[datetime, float]
) -> Refused | None:
    """Returns a refusal if the booking would exceed the person's quota in any week; otherwise None.

    `hours` maps the start of each week to the GPU-hours of the person's other bookings.
    """
    limit = rules.quota_of(person)
    gpus = _gpu_count(draft.gpus)
    if limit is None or not gpus:
        return None
    for week, seconds in sorted(charged(draft.interval, rules, now).items()):
        has, extra = hours.get(week, 0.0), seconds * gpus / 3600
        if has + extra > limit + 1e-9:
            left = max(limit - has, 0.0)
            hint = f"Book {hours_text(left / gpus)} or less of these GPUs, fewer GPUs, or another week."
            if left < rules.shortest_min / 60:
                hint = "Release another booking of that week, or take another week."
            if rules.same_day_is_free:
                hint += " Bookings for the same day need no quota."
            begin = week.astimezone(zone_of(rules.zone))
            return Refused(
                f"{person} has {has:.4g} of {limit:g} GPU-hours in the week of {begin.day} {begin:%b}, "
                f"and this booking takes {extra:.4g} more",
                code="quota",
                hint=hint,
            )
    return None


def charged(interval: Interval, rules: QuotaSettings, now: datetime) -> dict[datetime, float]:
    """Returns, by start of the week, how many seconds of a booking count towards a quota."""
    parts = subtract([interval], [day_of(now, rules.zone)]) if rules.same_day_is_free else [interval]
    seconds: dict[datetime, float] = {}
    for part in parts:
        for week, in_week in by_week(part, rules.zone).items():
            seconds[week] = seconds.get(week, 0.0) + in_week
    return seconds


def gpu_hours(bookings: Iterable[Booking | Draft], zone: str) -> dict[datetime, float]:
    """Returns, by start of the week, the sum of the bookings' GPU-hours."""
    hours: dict[datetime, float] = {}
    for booking in bookings:
        if gpus := _gpu_count(booking.gpus):
            for week, seconds in by_week(booking.interval, zone).items():
                hours[week] = hours.get(week, 0.0) + seconds * gpus / 3600
    return hours


def _gpu_count(slot_ids: Iterable[str]) -> int:
    return sum(not is_cpu_id(slot) for slot in slot_ids)


def _validate(rules: QuotaSettings) -> None:
    check_number("quota_gpu_hours", rules.quota_gpu_hours)
    for person, quota in rules.quotas.items():
        check_number(f"quotas.{person}", quota)


def _write_quotas(quotas: Mapping[str, float]) -> str:
    return ", ".join(f"{person}={hours:g}" for person, hours in sorted(quotas.items()))


def _read_quotas(text: str) -> dict[str, Any]:
    quotas: dict[str, Any] = {}
    for part in filter(None, (part.strip() for part in re.split(r"[,\n]", text))):
        person, equals, hours = part.partition("=")
        if not equals or not person.strip():
            raise UsageError(f"the quota `{part}` cannot be read", code="bad_rules", hint="Write kim=200, lee=50.")
        quotas[person.strip()] = read_number("quota", hours)
    return quotas


RULE = Rule(
    form=(
        number_field("quota_gpu_hours", "GPU-hours per person and week"),
        FormField("quotas", "Other quotas", _write_quotas, _read_quotas, example="kim=200, lee=50"),
        FormField(
            "same_day_is_free",
            "Bookings for the same day need no quota",
            lambda is_free: "yes" if is_free else "",
            bool,
            is_flag=True,
        ),
    ),
    check=lambda rules, request: check_quota(request.draft, rules, request.now, request.owner, request.hours),
    codes=("quota",),
    validate=_validate,
    parsers={"quotas": dict},
)

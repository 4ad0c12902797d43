"""The length and horizon rule: how short and how long a booking may be, and how far ahead it may end."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from torchyard_core.booking.errors import Refused
from torchyard_core.booking.intervals import Interval
from torchyard_core.booking.rules.rule import Rule, SharedSettings, check_number, clock_text, hours_text, number_field
from torchyard_core.formatting import counted


@dataclass(frozen=True)
class LengthSettings(SharedSettings):
    """Settings of length and horizon. None means no limit. Lengths are measured in UTC."""

    longest_h: float | None = 168
    furthest_days: float | None = 90
    shortest_min: float = 15


def check_length(interval: Interval, rules: LengthSettings, now: datetime) -> Refused | None:
    """Returns a refusal if the interval is too short, is too long or ends beyond the horizon; otherwise None."""
    length = interval.duration
    if length < timedelta(minutes=rules.shortest_min):
        hint = f"Book at least until {clock_text(interval.start + timedelta(minutes=rules.shortest_min), rules.zone)}."
        return Refused(f"a booking is at least {rules.shortest_min:g} min long", code="too_short", hint=hint)
    if rules.longest_h is not None and length > timedelta(hours=rules.longest_h):
        end = clock_text(interval.start + timedelta(hours=rules.longest_h), rules.zone)
        hint = f"End it by {end}; what comes after is another booking."
        return Refused(f"a booking is at most {hours_text(rules.longest_h)} long", code="too_long", hint=hint)
    if rules.furthest_days is not None and interval.end > now + timedelta(days=rules.furthest_days):
        hint = f"It may end by {clock_text(now + timedelta(days=rules.furthest_days), rules.zone)}."
        return Refused(
            f"bookings are made at most {counted(rules.furthest_days, 'day')} ahead", code="too_far", hint=hint
        )
    return None


def _validate(rules: LengthSettings) -> None:
    check_number("longest_h", rules.longest_h)
    check_number("furthest_days", rules.furthest_days)
    check_number("shortest_min", rules.shortest_min, is_optional=False)


RULE = Rule(
    form=(
        number_field("shortest_min", "Shortest booking (min)", is_optional=False),
        number_field("longest_h", "Longest booking (h)"),
        number_field("furthest_days", "Booking horizon (days)"),
    ),
    check=lambda rules, request: check_length(request.draft.interval, rules, request.now),
    codes=("too_short", "too_long", "too_far"),
    validate=_validate,
)

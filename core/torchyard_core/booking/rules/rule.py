"""The parts of a rule: its settings, its check of a booking, and its fields in the rules form.

Each rule except the time zone has a module with a `RULE` and a frozen dataclass of its settings. `team_rules.Rules`
inherits all settings, and `team_rules.RULES` lists all rules. See docs/how-to-add-a-booking-rule.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any

from torchyard_core.booking.errors import Refused
from torchyard_core.booking.intervals import Interval
from torchyard_core.booking.model import Draft, Slot
from torchyard_core.booking.time_parser import zone_of
from torchyard_core.errors import UsageError
from torchyard_core.problems import did_you_mean


class SharedSettings:
    """Settings that several rules read. Each setting is a field in the settings of one rule."""

    zone: str
    shortest_min: float


@dataclass(frozen=True)
class Request:
    """A new or changed booking to which the rules are applied."""

    draft: Draft
    owner: str
    now: datetime
    slots: Sequence[Slot]
    hours: Mapping[datetime, float]
    """GPU-hours of the owner's other bookings in each week. Keys are the starts of weeks."""
    added: Interval | None = None
    """The interval that is added to the end of a running booking; None for other requests."""


@dataclass(frozen=True)
class FormField:
    """A field of the rules form, which shows a setting as text."""

    setting: str
    title: str
    write: Callable[[Any], str]
    read: Callable[[str], Any]
    """A function that parses the text. It raises UsageError if the text is invalid."""
    example: str = ""
    is_multiline: bool = False
    is_flag: bool = False
    """Whether the setting is shown as a check box. The text is empty for an unchecked box."""


@dataclass(frozen=True)
class Rule:
    """A rule of the team. The first parameter of `check` and `validate` contains the rule's settings."""

    form: tuple[FormField, ...] = ()
    check: Callable[[Any, Request], Refused | None] | None = None
    codes: tuple[str, ...] = ()
    """Codes of the rule's refusals. The same rule in PostgreSQL raises errors with these codes as constraint names."""
    validate: Callable[[Any], object] = lambda settings: None
    """A function that raises UsageError or Refused for invalid values."""
    parsers: Mapping[str, Callable[[Any], Any]] = field(default_factory=dict)
    """Functions that read settings with structured values from JSON."""


MOST = 1_000_000
"""Exclusive upper bound of numbers in rules."""


def number_field(setting: str, title: str, *, is_optional: bool = True) -> FormField:
    """Returns a form field for a number. If the setting is optional, an empty field means no limit."""

    def read(text: str) -> float | None:
        if is_optional and not text.strip():
            return None
        value = read_number(title, text)
        if problem := _range_problem(value):
            raise UsageError(f"{title}: {problem}", code="bad_rules")
        return value

    return FormField(setting, title, lambda value: "" if value is None else f"{value:g}", read)


def read_number(name: str, text: str) -> float:
    """Parses a number entered in the form.

    Raises UsageError, with a message that begins with `name`, for other text.
    """
    try:
        return float(text.strip())
    except ValueError:
        message = f"{name}: `{text.strip()}` is not a number"
        raise UsageError(message, code="bad_rules", hint="Leave it empty for no limit.") from None


def check_number(name: str, value: Any, *, is_optional: bool = True) -> None:
    """Raises UsageError unless the value is a number of at least 0 and less than `MOST`, or None if it is optional."""
    if is_optional and value is None:
        return
    if problem := _range_problem(value):
        raise UsageError(f"the rule {name} {problem}", code="bad_rules")


def _range_problem(value: Any) -> str:
    """Returns the reason why the number is invalid, or an empty string if it is valid."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not value >= 0:
        return f"must be a number of 0 or more, not {value!r}"
    return "" if value < MOST else f"must be less than {MOST}, not {value!r}"


def refuse_unknown_keys(data: Mapping[str, Any], kind: type, what: str) -> None:
    """Raises UsageError for a key that is not a field of the dataclass `kind`."""
    names = [one.name for one in fields(kind)]
    for key in data:
        if key not in names:
            raise UsageError(f"there is no {what} `{key}`{did_you_mean(str(key), names)}", code="unknown_rule")


def lines_of(text: str) -> list[str]:
    """Returns the non-blank lines of `text`, stripped."""
    return [line.strip() for line in text.splitlines() if line.strip()]


def clock_text(moment: datetime, zone: str) -> str:
    """Formats a moment with its zone: `Mon 23 Nov 09:00 (Europe/Berlin)`."""
    local = moment.astimezone(zone_of(zone))
    return f"{local:%a} {local.day} {local:%b %H:%M} ({zone})"


def hours_text(hours: float) -> str:
    """Formats hours: `8 h`, `7 days`."""
    return f"{hours:.4g} h" if hours < 48 or hours % 24 else f"{hours / 24:g} days"

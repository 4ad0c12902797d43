"""The enforcement rule: how agents respond to processes on GPUs that another person has booked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torchyard_agent.protocol.calendar import LEVELS
from torchyard_core.booking.rules.rule import Rule, refuse_unknown_keys
from torchyard_core.errors import UsageError

LONGEST_GRACE_S = 7 * 86400


@dataclass(frozen=True)
class Enforcement:
    """The enforcement level of the hosts that match a pattern. The first entry that matches a host applies.

    Levels are `off`; `observe` (violations are recorded in the host's audit log); `warn` (the owner of the process
    receives a warning); `stop` (after a warning, the process is ended `grace_s` later).
    """

    host: str = "*"
    """A pattern of host names."""
    level: str = "observe"
    grace_s: float = 300
    dry_run: bool = True
    """Whether warnings and stops are only recorded in the audit log."""


@dataclass(frozen=True)
class EnforcementSettings:
    """The enforcement levels of hosts. Bookings are not enforced on a host without an entry."""

    enforcement: tuple[Enforcement, ...] = ()


def _parse(data: Mapping[str, Any]) -> Enforcement:
    refuse_unknown_keys(data, Enforcement, "key of an enforcement")
    one = Enforcement(**data)
    if one.level not in LEVELS:
        raise UsageError(f"enforcement has the levels {', '.join(LEVELS)}, not {one.level!r}", code="bad_rules")
    is_number = isinstance(one.grace_s, int | float) and not isinstance(one.grace_s, bool)
    if not is_number or not 0 <= one.grace_s <= LONGEST_GRACE_S:
        raise UsageError("the grace of an enforcement is a number of seconds, up to a week", code="bad_rules")
    if not isinstance(one.dry_run, bool) or not isinstance(one.host, str) or not one.host:
        raise UsageError("an enforcement names a host, and dry_run is true or false", code="bad_rules")
    return one


RULE = Rule(parsers={"enforcement": lambda entries: tuple(map(_parse, entries))})

"""The idle release rule: a running booking is released when its GPUs have been unused for some time.

Agents record no evidence of idleness for GPUs that a live run holds.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from torchyard_core.booking.model import Booking, IdleEvidence, State
from torchyard_core.booking.rules.rule import Rule, check_number, number_field

WARN_BEFORE = timedelta(minutes=10)


@dataclass(frozen=True)
class IdleReleaseSettings:
    """Settings of idle release. If `idle_release_min` is None, idle bookings are never released."""

    idle_release_min: float | None = 30
    """Idle time in minutes after which a booking is released."""


class Verdict(StrEnum):
    """The action that is due for a booking. FINE means no action. NO_SHOW means releasing GPUs that were never used."""

    FINE = "fine"
    WARN = "warn"
    NO_SHOW = "no_show"
    RELEASE = "release"


@dataclass(frozen=True)
class Idle:
    """The action that is due for a booking, and the time of its release."""

    verdict: Verdict
    frees_at: datetime | None = None
    """The time at which the release is due; None if no action is due."""


def verdict(booking: Booking, evidence: Iterable[IdleEvidence], rules: IdleReleaseSettings, now: datetime) -> Idle:
    """Returns the action that is due for a booking.

    The action is FINE if the booking is not running or there is no evidence.
    """
    if rules.idle_release_min is None or not booking.is_running(now):
        return Idle(Verdict.FINE)
    of_it = (one for one in evidence if one.booking_id == booking.id)
    # If two reporters disagree about the same second, the GPU counts as in use.
    newest = max(of_it, key=lambda one: (one.seen_at, one.idle_since), default=None)
    if newest is None:
        return Idle(Verdict.FINE)
    # Any change of an active booking counts as use, because a new run that the evidence does not show yet may have
    # caused the change.
    shown = booking.changed if booking.state is State.ACTIVE else booking.start
    since = max(newest.idle_since, booking.start, shown)
    frees_at = since + timedelta(minutes=rules.idle_release_min)
    seen = min(newest.seen_at, now)
    if seen >= frees_at:
        never_used = booking.state is State.BOOKED and since - booking.start < timedelta(minutes=1)
        return Idle(Verdict.NO_SHOW if never_used else Verdict.RELEASE, frees_at)
    # Evidence that is too old does not show whether the GPUs are in use now.
    if seen >= frees_at - WARN_BEFORE and now - seen < WARN_BEFORE:
        return Idle(Verdict.WARN, frees_at)
    return Idle(Verdict.FINE)


def _validate(rules: IdleReleaseSettings) -> None:
    check_number("idle_release_min", rules.idle_release_min)


RULE = Rule(form=(number_field("idle_release_min", "Release idle bookings after (min)"),), validate=_validate)

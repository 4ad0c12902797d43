"""Bookings that nobody uses: warned about, then freed. A live run is never idle, whatever its GPUs do meanwhile:
whoever records evidence records none while one lives."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from torchyard_core.booking.model import Booking, IdleEvidence, State
from torchyard_core.booking.rules.team_rules import Rules

WARN_BEFORE = timedelta(minutes=10)


class Verdict(StrEnum):
    """On a booking: in use or not known to be idle, its owner to be warned, or to be freed."""

    FINE = "fine"
    WARN = "warn"
    NO_SHOW = "no_show"
    RELEASE = "release"


@dataclass(frozen=True)
class Idle:
    """`frees_at`: when it frees itself, or would have ("would have freed 02:43"); None where it is not idle."""

    verdict: Verdict
    frees_at: datetime | None = None


def verdict(booking: Booking, evidence: Iterable[IdleEvidence], rules: Rules, now: datetime) -> Idle:
    """What is to be done with a booking. Only what an agent has seen idle counts, not when none looked."""
    if rules.idle_release_min is None or not booking.is_running(now):
        return Idle(Verdict.FINE)
    of_it = (one for one in evidence if one.booking_id == booking.id)
    # Of what two reporters saw in one second, use counts.
    newest = max(of_it, key=lambda one: (one.seen_at, one.idle_since), default=None)
    if newest is None:
        return Idle(Verdict.FINE)
    # A run that has begun since an agent looked last shows in the booking before it shows in the evidence.
    shown = booking.changed if booking.state is State.ACTIVE else booking.start
    since = max(newest.idle_since, booking.start, shown)
    frees_at = since + timedelta(minutes=rules.idle_release_min)
    seen = min(newest.seen_at, now)
    if seen >= frees_at:
        never_used = booking.state is State.BOOKED and since - booking.start < timedelta(minutes=1)
        return Idle(Verdict.NO_SHOW if never_used else Verdict.RELEASE, frees_at)
    # Evidence of long ago says nothing of now: somebody may have begun since.
    if seen >= frees_at - WARN_BEFORE and now - seen < WARN_BEFORE:
        return Idle(Verdict.WARN, frees_at)
    return Idle(Verdict.FINE)

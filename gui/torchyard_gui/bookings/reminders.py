"""Which of one's own bookings ends soon while something of it is in use, and whether it can be made longer. No Qt."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from torchyard_core.booking.model import Booking

BEFORE = timedelta(minutes=15)
"""How long before the end one is reminded; a run that has to stop is warned 10 min before."""
LONGER = timedelta(hours=1)
STEP = timedelta(minutes=15)


@dataclass(frozen=True)
class Reminder:
    """`follower` is the next booking of one of its GPUs, where that leaves less than an hour; `longer` is by how much
    it can be extended, nothing where somebody follows at once."""

    booking: Booking
    follower: Booking | None
    longer: timedelta

    @property
    def key(self) -> tuple[str, datetime]:
        """The same for as long as there is nothing new to say."""
        return self.booking.id, self.booking.end


def reminders(
    bookings: Collection[Booking], person: str, now: datetime, in_use: Collection[str], with_run: Collection[str]
) -> tuple[Reminder, ...]:
    """The soonest end first. `in_use`: slots that somebody is on; `with_run`: bookings that a live run stands on."""
    found = [
        _reminder(one, bookings)
        for one in bookings
        if one.owner == person
        and one.is_live
        and one.is_running(now)
        and one.end - now <= BEFORE
        and (one.id in with_run or any(gpu in in_use for gpu in one.gpus))
    ]
    return tuple(sorted(found, key=lambda one: (one.booking.end, one.booking.id)))


def _reminder(booking: Booking, bookings: Iterable[Booking]) -> Reminder:
    gpus = set(booking.gpus)
    following = [one for one in bookings if one.is_live and one.start >= booking.end and gpus.intersection(one.gpus)]
    follower = min(following, key=lambda one: (one.start, one.id), default=None)
    if follower is None or follower.start - booking.end >= LONGER:
        return Reminder(booking, None, LONGER)
    return Reminder(booking, follower, (follower.start - booking.end) // STEP * STEP)

"""Whether a draft could be booked, by what is loaded: asked for every quarter of an hour that is dragged over, so it
asks no database. The store has the last word when it is dropped. No Qt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

from torchyard_core.booking.errors import Refused
from torchyard_core.booking.model import Booking, Draft, Slot, is_cpu_id, normal
from torchyard_core.booking.rules.team_rules import Rules, by_week, check, check_change
from torchyard_core.booking.search.conflict import Clashing, Conflict


@dataclass(frozen=True)
class Known:
    """The calendar as it is loaded, and whose it is."""

    bookings: Sequence[Booking]
    slots: Sequence[Slot]
    rules: Rules
    person: str
    is_admin: bool
    now: datetime
    away: str = ""
    """Why nothing can be booked at all: the database is away."""

    @cached_property
    def live_on(self) -> Mapping[str, Sequence[Booking]]:
        """The live bookings by GPU: made when first asked for, as most changes of a calendar meet no drag."""
        found: dict[str, list[Booking]] = {}
        for booking in self.bookings:
            if booking.is_live:
                for gpu in booking.gpus:
                    found.setdefault(gpu, []).append(booking)
        return found


def refusal(known: Known, draft: Draft, of: Booking | None = None) -> Refused | None:
    """Why `draft` is not to be, or why `of` cannot be changed into it; None where nothing speaks against it."""
    if known.away:
        return Refused(known.away, code="store_away")
    draft = normal(draft)
    owner = of.owner if of is not None else known.person
    if of is not None and owner != known.person and not known.is_admin:
        return Refused(
            f"{of.title!r} is {owner}'s booking: only {owner} or an admin can change it",
            code="not_yours",
            hint=f"Ask {owner}, or join the waitlist.",
        )
    hours = _hours(known, owner, of)
    if of is None:
        refused = check(draft, known.rules, known.now, owner, hours, known.slots)
    else:
        refused = check_change(of, draft, known.rules, known.now, hours, known.slots)
    return refused or _clash(known, draft, of)


def _hours(known: Known, owner: str, but: Booking | None) -> dict[datetime, float]:
    hours: dict[datetime, float] = {}
    if known.rules.quota_of(owner) is None:
        return hours
    for booking in known.bookings:
        gpus = sum(not is_cpu_id(gpu) for gpu in booking.gpus)
        if booking.owner != owner or not gpus or (but is not None and booking.id == but.id):
            continue
        for week, seconds in by_week(booking.interval, known.rules.zone).items():
            hours[week] = hours.get(week, 0.0) + seconds * gpus / 3600
    return hours


def _clash(known: Known, draft: Draft, of: Booking | None) -> Refused | None:
    taken: dict[str, list[str]] = {}
    by_id: dict[str, Booking] = {}
    for gpu in draft.gpus:
        for booking in known.live_on.get(gpu, ()):
            if booking.start < draft.end and booking.end > draft.start and (of is None or booking.id != of.id):
                taken.setdefault(booking.id, []).append(gpu)
                by_id[booking.id] = booking
    if not taken:
        return None
    clashing = tuple(Clashing(by_id[key], tuple(gpus)) for key, gpus in taken.items())
    return Refused(Conflict(draft, clashing).sentence(known.slots, known.person), code="conflict")

"""Validation of a draft against the loaded part of the calendar, during a drag or a keyboard edit. Does not depend on
Qt.

The validation needs no access to the database. When the draft is booked, the store validates it again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

from torchyard_core.booking.errors import Refused
from torchyard_core.booking.model import Booking, Draft, Slot, normalized
from torchyard_core.booking.rules.quota import gpu_hours
from torchyard_core.booking.rules.refusal import Circumstances, check_owner, find_refusal
from torchyard_core.booking.rules.team_rules import Rules
from torchyard_core.booking.search.conflict import Clashing


@dataclass(frozen=True)
class LoadedCalendar:
    """The loaded part of the calendar, and the user whose drafts are validated."""

    bookings: Sequence[Booking]
    slots: Sequence[Slot]
    rules: Rules
    person: str
    is_admin: bool
    now: datetime
    away: str = ""
    """The reason why nothing can be booked while the database is unavailable; otherwise empty."""

    @cached_property
    def live_on(self) -> Mapping[str, Sequence[Booking]]:
        """The live bookings of each GPU.

        The mapping is computed on first access, because most calendar updates are not followed by a drag.
        """
        found: dict[str, list[Booking]] = {}
        for booking in self.bookings:
            if booking.is_live:
                for gpu in booking.gpus:
                    found.setdefault(gpu, []).append(booking)
        return found


def find_loaded_refusal(known: LoadedCalendar, draft: Draft, of: Booking | None = None) -> Refused | None:
    """Returns why `draft` cannot be booked or, if `of` is given, why the booking `of` cannot be changed to `draft`.

    Returns None if no reason is known.
    """
    if known.away:
        return Refused(known.away, code="store_away")
    draft = normalized(draft)
    if of is not None and (refused := check_owner(of, known.person, is_admin=known.is_admin)):
        return refused
    hours = _hours(known, known.person if of is None else of.owner, of)
    clashing = _clashing(known, draft, of)
    return find_refusal(draft, Circumstances(known.rules, known.now, known.slots, known.person, hours, clashing), of)


def _hours(known: LoadedCalendar, owner: str, changed: Booking | None) -> Mapping[datetime, float]:
    if known.rules.quota_of(owner) is None:
        return {}
    others = (one for one in known.bookings if one.owner == owner and (changed is None or one.id != changed.id))
    return gpu_hours(others, known.rules.zone)


def _clashing(known: LoadedCalendar, draft: Draft, changed: Booking | None) -> tuple[Clashing, ...]:
    gpus_of: dict[str, list[str]] = {}
    by_id: dict[str, Booking] = {}
    for gpu in draft.gpus:
        for one in known.live_on.get(gpu, ()):
            if one.start < draft.end and one.end > draft.start and (changed is None or one.id != changed.id):
                gpus_of.setdefault(one.id, []).append(gpu)
                by_id[one.id] = one
    return tuple(Clashing(by_id[key], tuple(gpus)) for key, gpus in gpus_of.items())

"""Checks new and changed bookings. The checks are pure functions that the store and the window share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from torchyard_core.booking.errors import Refused
from torchyard_core.booking.intervals import Interval
from torchyard_core.booking.model import Booking, Draft, Slot, State, cluster_of
from torchyard_core.booking.rules.rule import Request
from torchyard_core.booking.rules.team_rules import Rules
from torchyard_core.booking.search.conflict import Clash, Clashing, Conflict
from torchyard_core.booking.time_parser import END_OF_TIME, zone_of
from torchyard_core.next_steps import CheckHosts
from torchyard_core.problems import did_you_mean

GRACE = timedelta(minutes=2)
"""How far in the past a new booking may begin. A user who opens a dialog with the start *now* needs time to confirm."""


@dataclass(frozen=True)
class Circumstances:
    """The state of the calendar against which a draft is checked."""

    rules: Rules
    now: datetime
    slots: Sequence[Slot]
    user: str
    hours: Mapping[datetime, float]
    """GPU-hours of the owner's other bookings in each week. Keys are the starts of weeks."""
    clashing: tuple[Clashing, ...] = ()
    """Other live bookings of the requested GPUs that overlap the requested period."""


def find_refusal(draft: Draft, given: Circumstances, booking: Booking | None = None) -> Refused | None:
    """Returns the first reason why the draft cannot be booked, or None if it can be booked.

    If `booking` is given, the result refers to changing this booking to the draft. The past cannot be changed: a
    running booking can be shortened or extended, but not moved.
    """
    if booking is None:
        refused = _check_new(draft, given, draft.owner or given.user)
    else:
        refused = _check_change(booking, draft, given)
    if refused is None and given.clashing:
        conflict = Conflict(draft, given.clashing)
        return Clash(conflict, conflict.sentence(given.slots, given.user))
    return refused


def check_owner(booking: Booking, user: str, *, is_admin: bool) -> Refused | None:
    """Returns a refusal if the booking belongs to another user and `user` is not an admin; otherwise None."""
    if booking.owner == user or is_admin:
        return None
    message = f"{booking.title!r} is {booking.owner}'s booking: only {booking.owner} or an admin can change it"
    return Refused(message, code="not_yours", hint=f"Ask {booking.owner}, or join the waitlist.")


def check_not_ended(booking: Booking, now: datetime) -> Refused | None:
    """Returns a refusal if the booking has ended or no longer holds its GPUs; otherwise None."""
    if not booking.is_live:
        how = {State.RELEASED: "released", State.CANCELLED: "cancelled", State.NO_SHOW: "freed because it was not used"}
        return Refused(f"the booking {booking.title!r} was {how[booking.state]}", code="ended", hint="Book anew.")
    if booking.end <= now:
        return Refused(
            f"the booking {booking.title!r} has ended: the past stays as it was", code="ended", hint="Book anew."
        )
    return None


def check_draft(draft: Draft, slots: Sequence[Slot]) -> Refused | None:
    """Returns a refusal if the draft is invalid regardless of the team's rules; otherwise None."""
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
        return Refused(f"no host of the fleet has the GPU `{unknown[0]}`{near}", code="unknown_gpu", hint=CheckHosts())
    if len(set(map(cluster_of, draft.gpus))) > 1:
        message = "a booking has either GPUs of hosts or nodes of one cluster"
        return Refused(message, code="mixed_places", hint="Make a booking for each.")
    if len(draft.uid) > 1000 or draft.end.year >= END_OF_TIME:
        hint = f"A UID has at most 1,000 letters, and a booking ends before the year {END_OF_TIME}."
        return Refused("the UID is too long, or the end too late", code="bad_value", hint=hint)
    if draft.end <= draft.start:
        return Refused(
            "the booking ends at or before its start", code="end_before_start", hint="Give it an end after its start."
        )
    return None


def _check_new(draft: Draft, given: Circumstances, owner: str) -> Refused | None:
    if refused := check_draft(draft, given.slots):
        return refused
    if draft.start < given.now - GRACE:
        return Refused("the booking begins in the past", code="past", hint="The earliest start is now.")
    return given.rules.check(Request(draft, owner, given.now, given.slots, given.hours))


def _check_change(booking: Booking, draft: Draft, given: Circumstances) -> Refused | None:
    if refused := check_not_ended(booking, given.now) or check_draft(draft, given.slots):
        return refused
    if (draft.start, draft.end, draft.gpus) == (booking.start, booking.end, booking.gpus):
        return None
    if cluster_of(draft.gpus[0]) != cluster_of(booking.gpus[0]):
        message = "a booking cannot be moved between a cluster and other hosts"
        return Refused(message, code="mixed_places", hint="Cancel it, and book the other GPUs or nodes anew.")
    if booking.start > given.now:
        return _check_new(draft, given, booking.owner)
    if draft.start != booking.start or draft.gpus != booking.gpus:
        message = "the booking has begun: it can be shortened or extended, not moved"
        return Refused(message, code="running", hint="Release it, and book the other time or GPUs anew.")
    if draft.end < given.now:
        return Refused("the booking would end in the past", code="past", hint="Release it: that ends it now.")
    if draft.end < booking.end:
        return None
    added = Interval(booking.end, draft.end)
    return given.rules.check(Request(draft, booking.owner, given.now, given.slots, given.hours, added))

"""What a desktop does for the calendar whenever it talks with hosts: GPUs that were found go into the catalogue,
bookings of runs that have ended are let go of, agents are handed the calendar and tell what they saw, idle bookings
are freed, their owner is warned before, and the waitlist is served. The first desktop that connects does it; no other
need.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from torchyard_core.booking.intervals import Interval, subtract
from torchyard_core.booking.model import Booking, Slot
from torchyard_core.booking.slots import slots_of
from torchyard_core.booking.sync.cached_calendar import View, age
from torchyard_core.booking.time_format import until
from torchyard_core.cli.context import Settings
from torchyard_core.cli.output import remark
from torchyard_core.cli.run_lookup import history_of
from torchyard_core.cli.views.booking_tables import booked_line
from torchyard_core.errors import TorchyardError

if TYPE_CHECKING:
    from torchyard_core.booking.store import BookingStore
    from torchyard_core.booking.sync.cached_calendar import Calendar
    from torchyard_core.fleet.fleet import Fleet


def exchange(chosen: Settings, fleet: Fleet, calendar: Calendar | None = None) -> None:
    """With the hosts that are connected. What keeps us from it is said beside the answer, and is no failure of the
    command: whoever comes next does it."""
    calendar = calendar or chosen.calendar()
    if not calendar.has_begun:
        return
    from torchyard_core.booking.run_end import end_bookings
    from torchyard_core.booking.sync.agent_exchange import exchange_with_agents
    from torchyard_core.fleet.calendar_push import open_links

    try:
        store = calendar.store()
        store.remember_slots(slots_of(fleet.known(), is_private=store.is_private))
        keep = chosen.own().keeps_after_failure
        let_go = end_bookings(store, history_of(chosen), open_links(fleet), keep)
        done = exchange_with_agents(fleet, store)
        freed, served = done.freed, done.served
        if not done.hosts:
            freed, served = store.apply_idle(), store.serve_waiting()
        idle = store.soon_idle()
        if freed or served or let_go or idle:
            _tell(chosen, store, let_go, freed, served, idle)
    except TorchyardError as error:
        remark(f"torchyard: the calendar was not brought up to date: {error.sentence()}")
    except Exception as error:  # one row of the calendar must not fail a command about hosts or runs
        remark(f"torchyard: the calendar was not brought up to date: {type(error).__name__}: {error}")


def _tell(
    chosen: Settings,
    store: BookingStore,
    let_go: Sequence[Booking],
    freed: Sequence[Booking],
    served: Sequence[Booking],
    idle: Sequence[tuple[Booking, datetime]],
) -> None:
    slots, zone = store.slots(), chosen.zone()
    for one in let_go:
        kept = "kept after the failure" if one.is_live else str(one.state)
        remark(f"Its run has ended, and the booking is {kept}: {booked_line(one, slots, zone)}.")
    for one in freed:
        remark(f"Freed, as it stayed idle: {one.owner}'s {booked_line(one, slots, zone)}.")
    for one in served:
        remark(f"Booked for {one.owner}, who waited: {booked_line(one, slots, zone)}.")
    for one, frees_at in idle:
        when = until(store.now(), frees_at, zone)
        remark(f"Nobody uses your booking; it frees itself at {when}: {booked_line(one, slots, zone)}.")


def remember_fleet(chosen: Settings, store: BookingStore) -> None:
    """Puts what was found out about this fleet's hosts into the catalogue; a fleet file in trouble is no hindrance."""
    try:
        known = chosen.known(chosen.inventory())
    except TorchyardError as error:
        remark(f"torchyard: {error.sentence()}")
        return
    store.remember_slots(slots_of(known, is_private=store.is_private))


def catalogue(store: BookingStore) -> tuple[Slot, ...]:
    """Every slot that can be booked. Raises TorchyardError where there is none yet."""
    slots = store.slots()
    if not slots:
        raise TorchyardError(
            "no host of the fleet was looked at yet, so there is no GPU to book",
            code="no_slots",
            hint="`torchyard hosts check` finds what each host has.",
        )
    return slots


def tell_age(view: View, asked: Interval | None = None) -> None:
    """Says beside the answer where it is not of now, and why; and where nothing is known of all that was asked for."""
    if view.is_live:
        return
    known = age(view, datetime.now(UTC)) or "nothing of the calendar is known here"
    remark(f"torchyard: {view.why} What is shown is {known}." if view.as_of else f"torchyard: {view.why}")
    if asked is not None and view.known is not None and subtract([asked], [view.known]):
        remark(f"Nothing is known of what is before {view.known.start:%Y-%m-%d} or after {view.known.end:%Y-%m-%d}.")

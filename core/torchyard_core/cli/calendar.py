"""What commands about bookings share: the catalogue kept up to date, and the calendar as it is or was last known."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from torchyard_core.booking.catalogue import slots_of
from torchyard_core.booking.intervals import Interval, subtract
from torchyard_core.booking.model import Slot
from torchyard_core.booking.sync.cached_calendar import View, age
from torchyard_core.cli.context import Settings
from torchyard_core.cli.output import remark
from torchyard_core.errors import TorchyardError

if TYPE_CHECKING:
    from torchyard_core.booking.store import BookingStore


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

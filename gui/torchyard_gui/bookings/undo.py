"""Undo of the user's last change, if the calendar still allows it. Independent of Qt."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from torchyard_core.booking.errors import Refused
from torchyard_core.booking.model import Booking, Draft
from torchyard_core.formatting import counted

if TYPE_CHECKING:
    from torchyard_core.booking.store import BookingStore


@dataclass(frozen=True)
class Undo:
    """A change that can be undone: its description, and the call that reverts it. The store may refuse the call."""

    what: str
    undo: Callable[[BookingStore], Any]


def change_to(store: BookingStore, booking: Booking, wanted: Booking | Draft) -> Booking:
    """Sets the editable fields of a booking to those of `wanted`, in one change.

    Raises Refused if the store refuses it.
    """
    return store.change(
        booking.id,
        start=wanted.start,
        end=wanted.end,
        gpus=wanted.gpus,
        title=wanted.title,
        purpose=wanted.purpose,
        stop_at_end=wanted.stop_at_end,
    )


def undo_booked(made: Sequence[Booking], what: str) -> Undo:
    """Returns the undo of new bookings: it cancels those that are still live."""

    def take_back(store: BookingStore) -> None:
        for booking in made:
            if store.booking(booking.id).is_live:
                store.cancel(booking.id)

    return Undo(what, take_back)


def undo_changed(after: Booking, before: Booking, what: str) -> Undo:
    """Returns the undo of a change of one booking."""

    return Undo(what, lambda store: change_to(store, after, before))


def change_series_to(
    store: BookingStore, booking: Booking, wanted: Draft, *, everything: bool
) -> tuple[tuple[Booking, ...], tuple[Booking, ...]]:
    """Applies the differences between `booking` and `wanted` to the booking's series.

    Raises Refused if the store refuses them.

    The future bookings of the series from `booking` on are changed, or with `everything` all future ones.

    Returns:
        The changed bookings before and after the change.
    """
    _, before = store.series(booking.series_id or "")
    differs = {
        name: getattr(wanted, name)
        for name in ("title", "purpose", "stop_at_end", "start", "end")
        if getattr(wanted, name) != getattr(booking, name)
    }
    if sorted(wanted.gpus) != sorted(booking.gpus):
        differs["gpus"] = wanted.gpus
    after = store.change_series(booking.id, everything=everything, **differs)
    changed = {one.id for one in after}
    return tuple(one for one in before if one.id in changed), after


def undo_series_changed(after: Sequence[Booking], before: Sequence[Booking], what: str) -> Undo:
    """Returns the undo of a change of a series.

    The bookings are restored in an order in which no two of them overlap.
    """
    was = {one.id: one for one in before}

    def take_back(store: BookingStore) -> None:
        later = any(one.start > was[one.id].start for one in after)
        for one in sorted(after, key=attrgetter("start"), reverse=not later):
            change_to(store, one, was[one.id])

    return Undo(what, take_back)


def undo_release(gone: Booking, what: str) -> Undo:
    """Returns the undo of a release or cancellation: it books the GPUs again.

    The new booking begins now if the old one was released, or at its original start if it was cancelled.
    """

    def take_back(store: BookingStore) -> Booking:
        start = max(gone.start, store.now()) if gone.let_go_at and gone.let_go_at > gone.start else gone.start
        return _book_anew(store, gone, start)

    return Undo(what, take_back)


def undo_series_cancelled(gone: Sequence[Booking], what: str) -> Undo:
    """Returns the undo of a cancelled series.

    It books the GPUs again. If the store refuses some bookings, it raises Refused with the number of restored bookings
    and the first reason.
    """

    def take_back(store: BookingStore) -> None:
        missed: list[Refused] = []
        for booking in gone:
            try:
                _book_anew(store, booking, booking.start)
            except Refused as refused:
                missed.append(refused)
        if missed:
            back = f"{len(gone) - len(missed)} of {counted(len(gone), 'booking')} restored; {missed[0].message}"
            raise Refused(back, code=missed[0].code, hint=missed[0].advice)

    return Undo(what, take_back)


def _book_anew(store: BookingStore, gone: Booking, start: datetime) -> Booking:
    draft = Draft(
        gone.title,
        gone.gpus,
        start,
        gone.end,
        gone.zone,
        gone.purpose,
        gone.owner if gone.owner != store.person else None,
        run_id=gone.run_id,
        stop_at_end=gone.stop_at_end,
    )
    return store.book(draft)

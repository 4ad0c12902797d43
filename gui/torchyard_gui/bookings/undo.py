"""One's own last change, and how to take it back where the calendar still allows it. No Qt."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torchyard_core.booking.model import Booking, Draft

if TYPE_CHECKING:
    from torchyard_core.booking.store import BookingStore


@dataclass(frozen=True)
class Undo:
    """What was done, in words, and the call that takes it back. The store says whether it still may."""

    what: str
    undo: Callable[[BookingStore], Any]


def undo_booked(made: Sequence[Booking], what: str) -> Undo:
    """Of new bookings: cancels those that nobody has let go of since."""

    def take_back(store: BookingStore) -> None:
        for booking in made:
            if store.booking(booking.id).is_live:
                store.cancel(booking.id)

    return Undo(what, take_back)


def undo_changed(after: Booking, before: Booking, what: str) -> Undo:
    """Of a change: back to what it was."""

    def take_back(store: BookingStore) -> Booking:
        return store.change(
            after.id,
            start=before.start,
            end=before.end,
            gpus=before.gpus,
            title=before.title,
            purpose=before.purpose,
            stop_at_end=before.stop_at_end,
        )

    return Undo(what, take_back)


def undo_let_go(gone: Booking, what: str) -> Undo:
    """Of a release or cancellation: booked anew, from when it was let go on, if nobody was quicker."""

    def take_back(store: BookingStore) -> Booking:
        start = max(gone.start, store.now()) if gone.let_go_at and gone.let_go_at > gone.start else gone.start
        owner = gone.owner if gone.owner != store.person else None
        draft = Draft(
            gone.title,
            gone.gpus,
            start,
            gone.end,
            gone.zone,
            gone.purpose,
            owner,
            run_id=gone.run_id,
            stop_at_end=gone.stop_at_end,
        )
        return store.book(draft)

    return Undo(what, take_back)

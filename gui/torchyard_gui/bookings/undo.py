"""Undo and redo of the user's changes to the calendar. Does not depend on Qt."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torchyard_core.booking.errors import Refused
from torchyard_core.booking.model import Booking, Draft
from torchyard_core.formatting import counted

if TYPE_CHECKING:
    from torchyard_core.booking.store import BookingStore

MOST_CHANGES = 100
"""Maximum number of changes that can be undone."""


@dataclass(frozen=True)
class BookingChange:
    """A booking before and after a change. None means that the booking held no GPUs, because it did not exist yet, or
    was released or cancelled.
    """

    before: Booking | None
    after: Booking | None

    @property
    def reverted(self) -> BookingChange:
        return BookingChange(self.after, self.before)

    @property
    def either(self) -> Booking:
        """The booking after the change or, if `after` is None, the booking before the change."""
        booking = self.after or self.before
        assert booking is not None
        return booking

    @property
    def moves_later(self) -> bool:
        return self.before is not None and self.after is not None and self.after.start > self.before.start


@dataclass(frozen=True)
class CalendarChange:
    """The changes that one user action made to one or more bookings. `what` describes the action, for example as
    `change “digits”`.
    """

    what: str
    bookings: tuple[BookingChange, ...]

    @property
    def reverted(self) -> CalendarChange:
        return CalendarChange(self.what, tuple(one.reverted for one in self.bookings))


def made(bookings: Iterable[Booking]) -> tuple[BookingChange, ...]:
    return tuple(BookingChange(None, one) for one in bookings)


def changed(before: Sequence[Booking], after: Iterable[Booking]) -> tuple[BookingChange, ...]:
    """Returns one change per booking in `after`. `before` must contain these bookings as they were before."""
    was = {one.id: one for one in before}
    return tuple(BookingChange(was[one.id], one) for one in after)


def ended(bookings: Iterable[Booking]) -> tuple[BookingChange, ...]:
    """Returns a change for each booking that was released or cancelled."""
    return tuple(BookingChange(one, None) for one in bookings)


@dataclass
class ChangeHistory:
    """The changes that can be undone and redone, newest last.

    A released booking cannot be made live again: an undo makes a new booking of the same GPUs, with another ID. Changes
    keep the ID of the original booking, and `_latest` holds the booking that currently replaces it.
    """

    done: list[CalendarChange] = field(default_factory=list)
    undone: list[CalendarChange] = field(default_factory=list)
    _latest: dict[str, Booking] = field(default_factory=dict)
    """Each booking as this window last saved it, by the ID of the original booking."""
    _first: dict[str, str] = field(default_factory=dict)
    """The ID of the original booking, by the ID of the booking that replaced it."""

    def add(self, change: CalendarChange) -> None:
        """Adds a change that the user has just made. Changes that were undone before can no longer be redone."""
        for one in change.bookings:
            self._latest[self._first_id(one.either)] = one.either
        self.done.append(change)
        del self.done[:-MOST_CHANGES]
        self.undone.clear()

    def apply(self, store: BookingStore, change: CalendarChange) -> CalendarChange:
        """Makes the changes of `change` in the store; to undo a change, pass its `reverted`. Called on a background
        thread.

        If another user or program has changed a booking in the meantime, or if the store refuses a booking, that
        booking stays as it is.

        Returns:
            The part of the change that was made.

        Raises:
            Refused: No booking was changed. The message is the reason for the first refusal.
            PartlyRefused: Only some of the bookings were changed.
        """
        applied: list[BookingChange] = []
        missed: list[Refused] = []
        # A series that moves to a later time is moved last booking first, so that no booking is moved to a time that
        # another booking of the series still occupies.
        later = any(one.moves_later for one in change.bookings)
        for one in sorted(change.bookings, key=lambda one: one.either.start, reverse=later):
            try:
                self._apply_one(store, one)
                applied.append(one)
            except Refused as refused:
                missed.append(refused)
        part = CalendarChange(change.what, tuple(applied))
        if not missed:
            return part
        if not applied:
            raise missed[0]
        raise PartlyRefused(part, len(change.bookings), missed[0])

    def _apply_one(self, store: BookingStore, change: BookingChange) -> None:
        first = self._first_id(change.either)
        current = self._latest.get(first, change.either)
        if change.before is None:
            current = _book_anew(store, change.either)
            self._first[current.id] = first
        elif change.after is None:
            store.release(current.id, expected=current)
        else:
            current = change_to(store, current, change.after, expected=current)
        self._latest[first] = current

    def _first_id(self, booking: Booking) -> str:
        return self._first.get(booking.id, booking.id)


class PartlyRefused(Refused):
    """Raised if some bookings of a change were changed and others were refused. `part` is the change that was made."""

    def __init__(self, part: CalendarChange, count: int, why: Refused):
        message = f"{len(part.bookings)} of {counted(count, 'booking')} changed; {why.message}"
        super().__init__(message, code=why.code, hint=why.advice)
        self.part = part


def change_to(
    store: BookingStore, booking: Booking, wanted: Booking | Draft, *, expected: Booking | None = None
) -> Booking:
    """Sets the editable fields of a booking to those of `wanted`, in one change.

    Raises Refused if the store refuses the change, or if `expected` is given and the stored booking differs from it.
    """
    return store.change(
        booking.id,
        start=wanted.start,
        end=wanted.end,
        gpus=wanted.gpus,
        title=wanted.title,
        purpose=wanted.purpose,
        stop_at_end=wanted.stop_at_end,
        expected=expected,
    )


def change_series_to(
    store: BookingStore, booking: Booking, wanted: Draft, *, everything: bool
) -> tuple[tuple[Booking, ...], tuple[Booking, ...]]:
    """Applies the differences between `booking` and `wanted` to the booking's series.

    Only bookings that have not begun are changed: those from `booking` onwards or, with `everything`, all of them.

    Raises Refused if the store refuses the changes.

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
    changed_ids = {one.id for one in after}
    return tuple(one for one in before if one.id in changed_ids), after


def _book_anew(store: BookingStore, gone: Booking) -> Booking:
    """Books the GPUs of a booking again, from its start or, if that is in the past, from now."""
    draft = Draft(
        gone.title,
        gone.gpus,
        max(gone.start, store.now()),
        gone.end,
        gone.zone,
        gone.purpose,
        gone.owner if gone.owner != store.person else None,
        run_id=gone.run_id,
        stop_at_end=gone.stop_at_end,
    )
    return store.book(draft)

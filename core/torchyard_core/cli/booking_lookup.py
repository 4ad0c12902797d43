"""Finds the booking that a command's argument names by its ID or by the beginning of its ID."""

from __future__ import annotations

from collections.abc import Iterable

from torchyard_core.booking.model import NODE_PREFIX, Booking, is_of_cluster
from torchyard_core.cli.context import CommandContext
from torchyard_core.errors import UsageError
from torchyard_core.next_steps import ListBookings
from torchyard_core.problems import did_you_mean


def find_booking(chosen: CommandContext, booking_id: str) -> Booking:
    """Looks up, in the database, the booking with the given ID, or the only booking whose ID begins with it.

    Raises UsageError if no booking or several bookings match, and StoreUnavailable if the database is unavailable.
    """
    _require_booking(booking_id)
    store = chosen.calendar().store()
    found = store.bookings_named(booking_id) if booking_id else ()
    return booking_of(found or store.bookings_near(booking_id), booking_id)


def _require_booking(booking_id: str) -> None:
    """Raises UsageError for the ID of a job or reservation, which `bookings list --on` prints beside the bookings."""
    if is_of_cluster(booking_id):
        cluster, _, what = booking_id.removeprefix(NODE_PREFIX).partition("/")
        kind = what.partition(" ")[0]
        named = what if kind in ("job", "reservation") else f"`{booking_id}`"
        raise UsageError(
            f"{named} belongs to Slurm on {cluster or 'a cluster'} and is not a booking, so only Slurm can change it.",
            code="of_slurm",
            hint="Log in to the cluster, and use `scancel` for a job or `scontrol` for a reservation.",
        )


def booking_of(bookings: Iterable[Booking], booking_id: str) -> Booking:
    """Returns the booking with the given ID, or the only booking whose ID begins with it.

    Raises UsageError if no booking or several bookings match.
    """
    known = list(bookings)
    found = [one for one in known if one.id.startswith(booking_id)]
    exact = [one for one in found if one.id == booking_id]
    if len(exact) == 1 or len(found) == 1:
        return (exact or found)[0]
    if found:
        names = ", ".join(one.id for one in found[:5])
        raise UsageError(f"`{booking_id}` is the beginning of several bookings: {names}.", code="ambiguous")
    near = did_you_mean(booking_id, [one.id for one in known], cutoff=0.7)
    raise UsageError(f"there is no booking `{booking_id}`{near}", code="no_such_booking", hint=ListBookings())

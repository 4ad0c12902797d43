"""Releases bookings at the end of the runs for which they were made.

A desktop of the booking's owner releases the booking: a desktop that is connected when the run ends, otherwise the next
one that connects.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

from torchyard_core.booking.launch_availability import keeps_until, moment_of
from torchyard_core.booking.model import Booking, whole_seconds
from torchyard_core.booking.store import BookingStore
from torchyard_core.launch.agent_interface import AgentLink
from torchyard_core.launch.runs.history import History
from torchyard_core.launch.runs.known_runs import list_runs

AHEAD = timedelta(days=400)


def end_bookings(
    store: BookingStore, history: History, links: Mapping[str, AgentLink], keep: timedelta | None
) -> tuple[Booking, ...]:
    """Releases or shortens the user's bookings of ended runs.

    The ended runs are those that the connected hosts report and those in the history. Returns the changed bookings.

    Args:
        store: The calendar.
        history: The runs that this desktop has launched.
        links: Links to the hosts whose runs are considered.
        keep: How long the booking of a failed run is kept. None means until the end of the booking.
    """
    now = store.now()
    own = store.bookings(now, now + AHEAD, owner=store.person, live=True)
    made_for = {one.run_id: one for one in own if one.run_id}
    if not made_for:
        return ()
    by_id = {one.id: one for one in made_for.values()}
    over: dict[str, dict[str, tuple[str, str]]] = {}
    in_use: set[str] = set()
    for run in list_runs(links, history):
        # A run may also use the booking that was made for an earlier run.
        booking = made_for.get(run.run_id) or by_id.get(run.booking)
        if booking is None:
            continue
        if not run.has_ended:
            in_use.add(booking.id)
            continue
        record = history.load(run.run_id)
        ended = record.ended if record is not None and record.ended else run.as_of
        over.setdefault(booking.id, {})[run.run_id] = ended, run.state
    changed: list[Booking] = []
    for booking_id in sorted(over.keys() - in_use):
        booking = by_id[booking_id]
        if booking.run_id not in over[booking_id]:
            continue  # A later run, whose state is not known yet, uses the booking now.
        ended, state = max(over[booking_id].values())
        if (after := end_of_run(store, booking, state, ended, keep)) is not None:
            changed.append(after)
    return tuple(changed)


def end_of_run(store: BookingStore, booking: Booking, state: str, ended: str, keep: timedelta | None) -> Booking | None:
    """Releases the booking of an ended run, or shortens it if the run failed.

    Returns the changed booking, or None if the booking is unchanged.

    Args:
        store: The calendar.
        booking: The booking of the run.
        state: The final state of the run.
        ended: The time at which the run ended, from its record.
        keep: How long the booking of a failed run is kept after the run. None means until the end of the booking.
    """
    now = store.now()
    if booking.run_id is None or not booking.is_live or booking.end <= now:
        return None
    end = keeps_until(booking, state, moment_of(ended) or now, keep)
    if end is None or end <= max(now, booking.start):  # The run may have ended before its booking began.
        return store.release(booking.id)
    return store.change(booking.id, end=whole_seconds(end)) if end < booking.end else None

"""Tests of launches that use an idle booking or the booking of an earlier run, which must not be released during the
launch.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from tests.core.booking.test_launch_availability import HOSTS, ONE, planned
from torchyard_core.booking.launch_booking import LaunchBooking
from torchyard_core.booking.model import Booking, Draft, Slot, State
from torchyard_core.booking.run_end import end_bookings
from torchyard_core.booking.slots import slots_of
from torchyard_core.booking.sync.cached_calendar import Calendar
from torchyard_core.launch.calendar_interface import BookingOptions
from torchyard_core.launch.runs.history import History, RunRecord

HALF_AN_HOUR = timedelta(minutes=30)


@pytest.fixture
def calendar(tmp_path: Path) -> Iterator[Calendar]:
    made = Calendar(f"sqlite:///{tmp_path / 'bookings.sqlite3'}", "kim", tmp_path / "kept.json")
    made.store().remember_slots(slots_of(HOSTS, is_private=True))
    yield made
    made.close()


@pytest.fixture
def history(tmp_path: Path) -> History:
    return History(tmp_path / "history")


def booked(calendar: Calendar, run_id: str | None) -> Booking:
    """Books all GPUs of the first host for eight hours from now, optionally for a run."""
    store = calendar.store()
    now = store.now()
    gpus = tuple(slot.id for slot in store.slots() if slot.host == HOSTS[0].name)
    return store.book(Draft("work", gpus, now, now + timedelta(hours=8), "UTC", run_id=run_id))


def note(history: History, run_id: str, state: str, booking: Booking, ended: str = "") -> None:
    times = {"submitted": "2026-11-22T09:00:00Z", "as_of": ended, "ended": ended}
    history.save(RunRecord(run_id, "work", "work.yaml", "gpu-a", ("gpu-a",), state=state, booking=booking.id, **times))


def launch(calendar: Calendar, run_id: str, length: timedelta | None = None) -> LaunchBooking:
    """Runs the part of a launch that comes before any process starts."""
    launching = LaunchBooking(calendar, "UTC", BookingOptions(length=length))
    way = launching.choices(HOSTS)[0]
    reserved = launching.settle(planned(ONE, way), run_id, "work", lambda question: False)
    assert reserved.booking_id is not None
    return launching


def test_a_booking_whose_run_has_ended_stays_with_the_run_that_is_launched_on_it(
    calendar: Calendar, history: History
) -> None:
    booking = booked(calendar, "run-a")
    now = calendar.store().now().isoformat()
    note(history, "run-a", "failed", booking, now)
    launching = launch(calendar, "run-c", timedelta(hours=9))  # The launch extends the booking.
    assert end_bookings(calendar.store(), history, {}, HALF_AN_HOUR) == ()  # The run has not started yet.
    launching.begun()
    note(history, "run-c", "running", booking)
    assert end_bookings(calendar.store(), history, {}, HALF_AN_HOUR) == ()
    assert calendar.store().booking(booking.id).end > booking.end
    note(history, "run-c", "succeeded", booking, now)
    (after,) = end_bookings(calendar.store(), history, {}, HALF_AN_HOUR)
    assert (after.id, after.state) == (booking.id, State.RELEASED)


def test_a_launch_that_is_taken_back_leaves_the_booking_to_the_run_that_it_was_made_for(
    calendar: Calendar, history: History
) -> None:
    booking = booked(calendar, "run-a")
    launch(calendar, "run-c").take_back()
    assert calendar.store().booking(booking.id).run_id == "run-a"
    note(history, "run-a", "stopped", booking, calendar.store().now().isoformat())
    assert len(end_bookings(calendar.store(), history, {}, HALF_AN_HOUR)) == 1


def test_a_second_run_on_a_booking_keeps_it_until_both_have_ended(calendar: Calendar, history: History) -> None:
    booking = booked(calendar, "run-a")
    note(history, "run-a", "running", booking)
    launch(calendar, "run-c").begun()
    now = calendar.store().now().isoformat()
    note(history, "run-c", "succeeded", booking, now)
    assert end_bookings(calendar.store(), history, {}, HALF_AN_HOUR) == ()
    note(history, "run-a", "succeeded", booking, now)
    assert len(end_bookings(calendar.store(), history, {}, HALF_AN_HOUR)) == 1


def test_a_booking_is_in_use_from_its_launch_on(calendar: Calendar) -> None:
    booking = booked(calendar, None)
    launch(calendar, "run-c")
    # The booking is marked as used before an agent can observe a process.
    assert calendar.store().booking(booking.id).state is State.ACTIVE


def test_a_launch_on_nodes_sees_its_user_s_running_and_coming_bookings_of_them(calendar: Calendar) -> None:
    store = calendar.store()
    store.remember_slots([Slot(f"slurm:{name}", name.partition("/")[0], 0) for name in ("hpc/n1", "hpc/n2", "far/n1")])
    now, hour = store.now(), timedelta(hours=1)
    later = store.book(Draft("later", ("slurm:hpc/n1",), now + 2 * hour, now + 3 * hour, "UTC"))
    running = store.book(Draft("now", ("slurm:hpc/n2",), now, now + hour, "UTC"))
    store.book(Draft("elsewhere", ("slurm:far/n1",), now, now + hour, "UTC"))
    store.book(Draft("theirs", ("slurm:hpc/n1",), now, now + hour, "UTC", owner="lee"))
    launching = LaunchBooking(calendar, "UTC", BookingOptions())
    found = launching.node_bookings("slurm:hpc/")
    assert [(one.id, one.title) for one in found] == [(running.id, "now"), (later.id, "later")]
    launching.use_nodes(found[0])
    launching.begun()
    assert store.booking(running.id).state is State.ACTIVE
    assert store.booking(running.id).run_id is None


def test_a_launch_on_nodes_makes_no_calendar(tmp_path: Path) -> None:
    made = Calendar(f"sqlite:///{tmp_path / 'none.sqlite3'}", "kim", tmp_path / "kept.json")
    assert LaunchBooking(made, "UTC", BookingOptions()).node_bookings("slurm:hpc/") == ()
    assert not (tmp_path / "none.sqlite3").exists()

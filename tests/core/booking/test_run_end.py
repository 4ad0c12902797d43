"""Tests of the release of bookings whose runs have ended."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from torchyard_core.booking.model import Draft, Slot, State
from torchyard_core.booking.run_end import end_of_run
from torchyard_core.booking.store import BookingStore, open_store

HALF_AN_HOUR = timedelta(minutes=30)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[BookingStore]:
    made = open_store(f"sqlite:///{tmp_path / 'bookings.sqlite3'}", "kim")
    made.remember_slots([Slot("A", "gpu-a", 0)])
    yield made
    made.close()


@pytest.mark.parametrize("state", ["stopped", "failed"])
def test_a_run_that_ends_before_its_booking_begins_lets_go_of_it(store: BookingStore, state: str) -> None:
    now = store.now()
    booking = store.book(Draft("later", ("A",), now + timedelta(hours=2), now + timedelta(hours=4), "UTC", run_id="r1"))
    after = end_of_run(store, booking, state, now.isoformat(), HALF_AN_HOUR)
    assert after is not None
    assert not after.is_live


def test_a_run_that_fails_within_its_booking_keeps_it_for_a_while(store: BookingStore) -> None:
    now = store.now()
    booking = store.book(Draft("now", ("A",), now, now + timedelta(hours=4), "UTC", run_id="r1"))
    after = end_of_run(store, booking, "failed", now.isoformat(), HALF_AN_HOUR)
    assert after is not None
    assert after.state in (State.BOOKED, State.ACTIVE)
    assert timedelta(minutes=29) < after.end - now < timedelta(minutes=32)

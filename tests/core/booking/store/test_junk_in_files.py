"""Tests that rows with invalid times in an SQLite file are skipped and reported, and that all other functions work."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.core.booking.teams import NOW, Team, draft
from torchyard_core.booking.errors import StoreUnreadable
from torchyard_core.booking.model import IdleEvidence, Use
from torchyard_core.booking.search.slot_search import Wish

HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
VALUES = ("soon", 9e999, -9e999, 10**17, b"\x00", "2031-01-06")


@pytest.fixture
def file_team(tmp_path: Path, clock: Any) -> Iterator[Team]:
    made = Team(clock, None, f"sqlite:///{tmp_path / 'bookings.sqlite3'}")
    made.open("kim").remember_slots(made.slots)
    yield made
    made.close()


def spoil(team: Team, statement: str, *values: Any) -> None:
    """Writes invalid values with raw SQL."""
    with closing(sqlite3.connect(team.place.removeprefix("sqlite:///"), isolation_level=None)) as connection:
        connection.execute("PRAGMA ignore_check_constraints = ON")
        assert connection.execute(statement, values).rowcount == 1


@pytest.mark.parametrize("junk", VALUES)
@pytest.mark.parametrize("column", ["ends", "created", "changed", "let_go_at"])
def test_a_booking_whose_times_are_none_is_skipped_and_named(file_team: Team, column: str, junk: Any) -> None:
    kim = file_team.open("kim")
    bad, good = kim.book(draft("b3", 1, 2)), kim.book(draft("a0", 1, 2))
    spoil(file_team, f"UPDATE bookings SET {column} = ? WHERE id = ?", junk, bad.id)
    if column == "ends" and junk in (-9e999, b"\x00"):
        spoil(file_team, "UPDATE bookings SET starts = ? WHERE id = ?", -9e999, bad.id)
    found = kim.bookings(NOW - 400 * DAY, NOW + 400 * DAY)
    assert [one.id for one in found] == [good.id]
    kim.busy(NOW, NOW + DAY)
    kim.usage(NOW, NOW + DAY)
    kim.snapshot()
    kim.apply_idle()
    kim.serve_waiting()
    assert kim.find(Wish(4, HOUR, NOW), 1)
    kim.book(draft("a1", 1, 2))
    # A booking that ended before the earliest representable time is skipped without a report.
    if column != "ends" or junk not in (-9e999,):
        assert f"the booking {bad.id} of kim" in kim.unreadable


@pytest.mark.parametrize("junk", VALUES)
def test_rows_of_other_tables_whose_times_are_none_are_skipped_and_named(file_team: Team, junk: Any) -> None:
    kim = file_team.open("kim")
    booking = kim.book(draft("a0", 0, 4))
    kim.record_use([Use("GPU-a0", "gpu-a", "kim", NOW, NOW + HOUR), Use("GPU-a1", "gpu-a", "lee", NOW, NOW + HOUR)])
    kim.record_idle([IdleEvidence(booking.id, NOW, NOW + HOUR)])
    entry = kim.wait(Wish(1, HOUR, NOW, gpus=("GPU-a0",), latest=NOW + 3 * HOUR), "waits")
    spoil(file_team, "UPDATE waitlist SET created = ? WHERE id = ?", junk, entry.id)
    spoil(file_team, "UPDATE idle_evidence SET seen_at = ?", junk)
    spoil(file_team, "UPDATE uses SET ends = ? WHERE person = 'lee'", junk)
    assert kim.waiting() == ()
    assert kim.idle_evidence() == ()
    assert kim.apply_idle() == ()
    kim.uses(NOW - HOUR, NOW + DAY)
    kim.release(booking.id)
    named = {f"the entry {entry.id} of kim in the waitlist", f"the evidence of the booking {booking.id}"}
    assert named <= kim.unreadable


def test_a_series_whose_times_are_none_is_a_sentence(file_team: Team) -> None:
    kim = file_team.open("kim")
    made = kim.book_series(draft("a0", 1, 2), "FREQ=DAILY;COUNT=2")
    spoil(file_team, "UPDATE series SET ends = 'soon'")
    with pytest.raises(StoreUnreadable, match="a time of the series"):
        kim.series(made.series_id)
    assert len(kim.bookings(NOW, NOW + 3 * DAY)) == 2

"""Tests of a calendar whose database is temporarily unavailable.

During that time, the calendar shows its last known state and the age of that state. Afterwards, it shows the database's
state again.
"""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest

from tests.core.booking.cluster import cluster
from tests.core.booking.teams import NOW, SLOTS, Clock, Team, draft, open_at
from torchyard_core.booking.errors import StoreUnavailable
from torchyard_core.booking.sync.cached_calendar import Calendar, age

DAY = timedelta(days=1)
WITHIN_S = 30


@pytest.fixture
def away_team(postgres):
    """Yields a separate server, which the test stops and starts. Skips the test if PostgreSQL is not installed."""
    with cluster() as server:
        made = Team(Clock(), server, server.empty())
        made.open("kim").remember_slots(SLOTS)
        yield made
        made.close()


def test_the_database_goes_and_comes_back_by_itself(away_team, tmp_path):
    team, server, monotonic = away_team, away_team.server, [0.0]

    def opened(url: str, person: str):
        return open_at(url, person, team.clock)

    def calendar():
        return Calendar(team.url("kim"), "kim", tmp_path / "kept.json", open_it=opened, monotonic=lambda: monotonic[0])

    first = calendar()
    notified: list[str] = []
    changed = threading.Event()

    def on_change(what: str) -> None:
        notified.append(what)
        changed.set()

    watch = team.open("lee").watch(on_change)
    try:
        # Changes before LISTEN cause no notification, so the first notification reports everything as changed.
        assert changed.wait(WITHIN_S)
        assert notified == ["all"]
        notified.clear()
        changed.clear()
        made = first.store().book(draft("a0", 1, 2))
        assert changed.wait(WITHIN_S)
        assert set(notified) == {"bookings"}
        assert first.view(NOW, NOW + DAY).bookings == (made,)
        assert (tmp_path / "kept.json").stat().st_mode & 0o777 == 0o600

        server.stop()
        changed.clear()
        team.clock.forward(minutes=35)
        for one in (first, calendar()):  # The second calendar is opened while the database is unavailable.
            seen = one.view(NOW, NOW + DAY)
            assert (seen.bookings, seen.is_live, seen.as_of) == ((made,), False, NOW)
            assert set(seen.slots) == set(SLOTS)
            assert age(seen, team.clock.now).endswith(", 35 min ago")
            assert "does not answer" in seen.why
            with pytest.raises(StoreUnavailable) as refused:
                one.store()
            assert refused.value.message.endswith("and nothing was booked")
            assert "the bookings shown are as of " in refused.value.message
            one.close()

        server.start()
        monotonic[0] += 10
        again = first.view(NOW, NOW + DAY)
        assert (again.bookings, again.is_live, age(again, team.clock.now)) == ((made,), True, "")
        first.store().book(draft("a1", 1, 2))
        assert changed.wait(WITHIN_S)
        assert "all" in notified
    finally:
        watch.close()
        first.close()


def test_a_file_that_cannot_be_reached_is_away_and_nothing_is_known(tmp_path):
    (tmp_path / "folder.sqlite3").mkdir()
    calendar = Calendar(f"sqlite:///{tmp_path / 'folder.sqlite3'}", "kim", tmp_path / "kept.json")
    seen = calendar.view(NOW, NOW + DAY)
    assert (seen.bookings, seen.as_of, seen.is_live) == ((), None, False)
    with pytest.raises(StoreUnavailable, match="no copy of it is stored here, and nothing was booked"):
        calendar.store()


def test_a_damaged_copy_is_not_shown(tmp_path):
    (tmp_path / "folder.sqlite3").mkdir()
    (tmp_path / "kept.json").write_text('{"version": 1, "url": "x"')
    calendar = Calendar(f"sqlite:///{tmp_path / 'folder.sqlite3'}", "kim", tmp_path / "kept.json")
    assert calendar.view(NOW, NOW + DAY).as_of is None


def test_another_process_on_the_same_file_is_noticed(tmp_path):
    team = Team(Clock(), None, f"sqlite:///{tmp_path / 'b.sqlite3'}")
    changed = threading.Event()
    one, other = team.open("kim"), team.open("lee")
    watch = one.watch(lambda what: changed.set())
    try:
        assert changed.wait(WITHIN_S)  # A change that was made before the first read is reported, too.
        changed.clear()
        other.remember_slots(SLOTS)
        assert changed.wait(WITHIN_S)
    finally:
        watch.close()
        team.close()

"""Tests that concurrent clients violate no invariant of the calendar in SQLite or PostgreSQL. `make bench` runs more
rounds.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest

from tests.attacks.races import HOUR, RACES, IdleRelease, Place, Quotas, Race, _now, overlaps, run
from tests.core.booking.cluster import Cluster
from tests.core.booking.conftest import postgres
from torchyard_core.booking.model import Draft
from torchyard_core.booking.rules.team_rules import Rules

__all__ = ["postgres"]
CLIENTS, ROUNDS = 8, 4
SEED = 13


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    if request.param == "sqlite":
        yield Place(tmp_path / "bookings.sqlite3")
        return
    server: Cluster = request.getfixturevalue("postgres")
    yield Place(server=server, database=server.empty())
    with server.connect("owner", "team") as connection:
        connection.execute("DROP TABLE IF EXISTS race_notes")
        connection.execute("DROP FUNCTION IF EXISTS race_evidence, race_state CASCADE")


@pytest.mark.parametrize("race", RACES)
def test_concurrent_clients_violate_no_invariant(place: Place, race: type[Race]) -> None:
    raced = run(place, race(), CLIENTS, ROUNDS, SEED)
    assert raced.violations == []
    # Some attempts succeeded and others were refused, which shows that the clients competed.
    assert {end.partition(" ")[2] for end in raced.ends} >= ({"done"} if race is IdleRelease else {"done", "refused"})
    assert sum(raced.ends.values()) >= CLIENTS * ROUNDS


def test_the_judges_see_violations(tmp_path: Path) -> None:
    """A race reports violations that are written to the tables, so the other tests can fail."""
    place = Place(tmp_path / "bookings.sqlite3")
    quotas, idle = Quotas(), IdleRelease()
    with closing(place.open("kim")) as store:
        quotas.begin(place, store)
        monday = quotas.prepare(place, store, 0)
        store.set_rules(Rules())
        one = store.book(Draft("one", ("GPU-a0", "GPU-a1"), monday, monday + 11 * HOUR, "UTC"))
        assert quotas.judge(place, monday) == ["kim has 22 of 20 GPU-hours"]
        other = store.book(Draft("other", ("GPU-a2",), monday, monday + HOUR, "UTC"))
        assert overlaps(place) == []
        for (trigger,) in place.sql("SELECT name FROM sqlite_master WHERE type = 'trigger'"):
            place.sql(f"DROP TRIGGER {trigger}")
        place.sql(f"UPDATE booking_gpus SET gpu = 'GPU-a1' WHERE booking_id = '{other.id}'")
        (twice,) = overlaps(place)
        assert twice.startswith("GPU-a1 is booked twice: ")
        place.sql(f"DELETE FROM booking_gpus WHERE booking_id = '{other.id}'")
        assert overlaps(place) == [f"{other.id} has no GPU"]
        idle.begin(place, store)
        since = int((_now() + timedelta(seconds=1)).timestamp())
        for booking, what, seen in (
            (one.id, "evidence", since),
            (one.id, "no_show", "NULL"),
            ("x", "released", "NULL"),
        ):
            place.sql(f"INSERT INTO race_notes (booking, what, since) VALUES ('{booking}', '{what}', {seen})")
        assert idle.judge(place, None) == [f"{one.id} was freed (no_show) after it was seen in use (evidence)"]

"""Fixtures of calendars in an SQLite file and in a PostgreSQL database."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.core.booking.cluster import Cluster, NoPostgres, cluster
from tests.core.booking.teams import Clock, Team


@pytest.fixture(scope="session")
def postgres() -> Iterator[Cluster]:
    """One PostgreSQL server for the session. If PostgreSQL is not installed, tests are skipped, or fail if CI=true."""
    try:
        with cluster() as running:
            yield running
    except NoPostgres as why:
        if os.environ.get("CI", "").lower() in {"1", "true"}:
            pytest.fail(str(why))
        pytest.skip(str(why))


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["sqlite", "postgres"])
def team(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> Iterator[Team]:
    """Yields calendars of both kinds, each with eight GPUs on two hosts and a host without GPUs."""
    if request.param == "sqlite":
        made = Team(clock, None, f"sqlite:///{tmp_path / 'bookings.sqlite3'}")
    else:
        server: Cluster = request.getfixturevalue("postgres")
        made = Team(clock, server, server.empty())
    made.open("kim").remember_slots(made.slots)
    yield made
    made.close()


@pytest.fixture
def database_team(postgres: Cluster, clock: Clock) -> Iterator[Team]:
    """Yields a calendar in PostgreSQL."""
    made = Team(clock, postgres, postgres.empty())
    made.open("kim").remember_slots(made.slots)
    yield made
    made.close()

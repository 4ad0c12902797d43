"""Tests of the address of a team's calendar in PostgreSQL, and of joining and creating such a calendar."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import keyring
import pytest
from keyring.backend import KeyringBackend
from keyring.errors import NoKeyringError

from tests.core.booking.cluster import Cluster
from tests.core.booking.conftest import postgres as postgres
from torchyard_core.app.desktop import calendar_of
from torchyard_core.app.team_calendar import TeamCalendar, team_url
from torchyard_core.booking.errors import BadUrl, PermissionDenied, StoreUnavailable
from torchyard_core.booking.model import Draft, Slot
from torchyard_core.booking.store import open_store
from torchyard_core.errors import TorchyardError, UsageError
from torchyard_core.home import Home
from torchyard_core.user_settings import read_user_settings


class Ring(KeyringBackend):
    """A keyring in memory. While `is_there` is false, storing a password raises NoKeyringError."""

    priority = 1.0  # type: ignore[assignment]  # keyring declares a property.

    def __init__(self) -> None:
        super().__init__()
        self.kept: dict[tuple[str, str], str] = {}
        self.is_there = True

    def get_password(self, service: str, username: str) -> str | None:
        return self.kept.get((service, username))

    def set_password(self, service: str, username: str, password: str) -> None:
        if not self.is_there:
            raise NoKeyringError("there is none")
        self.kept[service, username] = password


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


@pytest.fixture
def ring() -> Iterator[Ring]:
    before = keyring.get_keyring()
    made = Ring()
    keyring.set_keyring(made)
    yield made
    keyring.set_keyring(before)


@pytest.mark.parametrize(
    ("address", "role", "url"),
    [
        ("db.example.org/gpus", "kim", "postgresql+psycopg://kim@db.example.org/gpus"),
        ("db:5433/gpus?sslmode=require", "kim", "postgresql+psycopg://kim@db:5433/gpus?sslmode=require"),
        ("postgresql://lee@db/gpus", "", "postgresql+psycopg://lee@db/gpus"),
        ("postgresql+psycopg://lee@db/gpus", "kim", "postgresql+psycopg://kim@db/gpus"),
    ],
)
def test_an_address_and_a_role_make_a_url(address: str, role: str, url: str) -> None:
    assert team_url(address, role) == url


@pytest.mark.parametrize(
    ("address", "role", "message"),
    [
        ("", "kim", "has no address"),
        ("db.example.org", "kim", "names no database"),
        ("db.example.org/", "kim", "names no database"),
        ("db/gpus", "", "no role is given"),
        ("db/gpus", "kim lee", "not the name of a role"),
        ("kim:secret@db/gpus", "", "must not hold a password"),
        ("sqlite:////tmp/x", "kim", "not a file"),
        ("mysql://db/gpus", "kim", "not in `mysql`"),
    ],
)
def test_a_wrong_address_is_refused_with_its_reason_and_without_its_password(
    address: str, role: str, message: str
) -> None:
    with pytest.raises(BadUrl, match=message) as error:
        team_url(address, role)
    assert "secret" not in error.value.sentence()


def test_joining_writes_the_setting_and_keeps_the_password_in_the_keyring_only(
    postgres: Cluster, home: Home, ring: Ring, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    team, settings = TeamCalendar(home), home.settings_file
    settings.parent.mkdir(parents=True, exist_ok=True)
    settings.write_text("# mine\nzone: Europe/Berlin\n")
    url, password = postgres.tcp_url("kim", postgres.empty()), postgres.passwords["kim"]
    found = team.test(url, password)
    assert (found.person, found.is_admin, found.bookings) == ("kim", False, 0)
    assert settings.read_text() == "# mine\nzone: Europe/Berlin\n", "a test changes nothing"
    with pytest.raises(StoreUnavailable, match="refused the login of kim") as error:
        team.join(url, "wrong")
    assert "Check role and password." in error.value.sentence()
    assert not ring.kept
    team.join(url, password)
    assert settings.read_text() == f"# mine\nzone: Europe/Berlin\nbookings_url: '{url}'\n"
    calendar = calendar_of(home, read_user_settings(settings))
    assert calendar.store().person == "kim", "the password comes from the keyring"
    calendar.close()
    lee = postgres.tcp_url("lee", "team")
    team.join(lee, postgres.passwords["lee"])
    assert settings.read_text().splitlines()[2:] == [f"bookings_url: '{lee}'"]
    team.leave()
    assert settings.read_text() == "# mine\nzone: Europe/Berlin\n"
    assert password not in caplog.text


def test_without_a_keyring_nothing_is_changed_and_the_line_for_pgpass_is_named(
    postgres: Cluster, home: Home, ring: Ring
) -> None:
    ring.is_there = False
    url = postgres.tcp_url("kim", postgres.empty())
    with pytest.raises(TorchyardError, match="no keyring") as error:
        TeamCalendar(home).join(url, postgres.passwords["kim"])
    assert f"127.0.0.1:{postgres.port}:team:kim:PASSWORD" in error.value.sentence()
    assert postgres.passwords["kim"] not in error.value.sentence()
    assert not home.settings_file.exists()


def test_settings_that_cannot_be_changed_are_named_and_left_as_they_are(postgres: Cluster, home: Home) -> None:
    home.settings_file.parent.mkdir(parents=True, exist_ok=True)
    text = "person: kim\nbookings_url: >-\n  sqlite:////nowhere/bookings.sqlite3\n"
    home.settings_file.write_text(text)
    with pytest.raises(UsageError, match="cannot be changed"):
        TeamCalendar(home).join(postgres.url("kim", postgres.empty()))
    assert home.settings_file.read_text() == text


def test_an_admin_takes_along_the_bookings_of_this_computer(postgres: Cluster, home: Home) -> None:
    private = open_store(f"sqlite:///{home.bookings_file}", "me")
    private.remember_slots([Slot("GPU-a0", "gpu-a", 0)])
    start = datetime.now(UTC).replace(microsecond=0) + timedelta(days=1)
    private.book(Draft("digits", ("GPU-a0",), start, start + timedelta(hours=1), "UTC"))
    private.close()
    home.settings_file.parent.mkdir(parents=True, exist_ok=True)
    home.settings_file.write_text("person: me\n")
    team, database = TeamCalendar(home), postgres.empty()
    with pytest.raises(PermissionDenied):
        team.join(postgres.url("kim", database), copy=True)
    assert "bookings_url" not in home.settings_file.read_text()
    assert team.join(postgres.url("ada", database), copy=True).copied == 1
    calendar = calendar_of(home, read_user_settings(home.settings_file))
    (copied,) = calendar.store().bookings(start, start + timedelta(days=1))
    calendar.close()
    assert (copied.title, copied.owner) == ("digits", "ada")


def test_a_calendar_is_created_by_a_role_that_may_and_joined_by_its_first_admin(
    postgres: Cluster, home: Home, ring: Ring
) -> None:
    team = TeamCalendar(home)
    with postgres.connect("owner", "postgres") as connection:
        connection.execute("DROP DATABASE IF EXISTS fresh")
        connection.execute("CREATE DATABASE fresh")
    with pytest.raises(PermissionDenied, match="may not create roles"):
        team.test_server(postgres.url("kim", "fresh"))
    owner = postgres.url("owner", "fresh")
    assert not team.test_server(owner).has_calendar
    made = team.create(owner, "", ["eve"], ["sam"])
    assert [(one.name, one.is_admin) for one in made.members] == [("eve", True), ("sam", False)]
    assert team.test_server(owner).has_calendar
    first = made.members[0]
    assert first.password is not None
    assert team.join(postgres.tcp_url("eve", "fresh"), first.password).calendar.is_admin
    with pytest.raises(StoreUnavailable, match="does not answer"):
        team.test("postgresql+psycopg://eve@127.0.0.1:1/fresh")
    with postgres.connect("owner", "postgres") as connection:
        connection.execute("DROP DATABASE fresh WITH (FORCE)")
        connection.execute("DROP ROLE eve")
        connection.execute("DROP ROLE sam")

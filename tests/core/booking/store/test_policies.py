"""Tests that a member can read the team's database with raw SQL, but cannot change other members' bookings."""

from __future__ import annotations

import os
import socket
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from tests.core.booking.teams import NOW, draft
from torchyard_core.booking.errors import BadUrl, PermissionDenied, Refused, StoreTooNew, StoreUnavailable
from torchyard_core.booking.store import open_store, setup_team

HOUR = timedelta(hours=1)


@pytest.fixture
def others(database_team):
    """Makes a booking as Kim, and opens a raw connection as Lee."""
    made = database_team.open("kim").book(draft("a0 a1", 1, 2))
    with database_team.server.connect("lee", database_team.place) as lee:
        yield database_team, made, lee


UNTOUCHED = [
    "UPDATE bookings SET title = 'mine'",
    "UPDATE bookings SET state = 'cancelled'",
    "DELETE FROM booking_gpus",
    "UPDATE waitlist SET state = 'withdrawn'",
]
DENIED = [
    "UPDATE bookings SET owner = 'lee'",
    "UPDATE booking_gpus SET live = false",
    "UPDATE booking_gpus SET gpu = 'GPU-b3'",
    "DELETE FROM bookings",
    "TRUNCATE bookings CASCADE",
    "DROP TABLE booking_gpus",
    "ALTER TABLE bookings DISABLE ROW LEVEL SECURITY",
    "ALTER TABLE booking_gpus DROP CONSTRAINT no_overlap",
    "DROP POLICY own_updates ON bookings",
    "CREATE OR REPLACE FUNCTION torchyard.may_write(owner text) RETURNS boolean LANGUAGE sql AS 'SELECT true'",
    "SET ROLE torchyard_admin",
    "SET ROLE kim",
    "GRANT torchyard_admin TO lee",
    "INSERT INTO rules VALUES (1, '{}')",
    "INSERT INTO logins VALUES ('*', 'root', 'lee')",
    "UPDATE alembic_version SET version_num = '9'",
    "SET session_replication_role = replica",
]


@pytest.mark.parametrize("statement", UNTOUCHED)
def test_what_a_member_writes_to_others_rows_reaches_none(others, statement):
    team, made, lee = others
    assert lee.execute("SELECT count(*) FROM bookings").fetchone() == (1,)
    assert lee.execute(statement).rowcount == 0
    assert team.open("ada").booking(made.id) == made


@pytest.mark.parametrize("statement", DENIED)
def test_what_a_member_may_not_do_is_denied(others, statement):
    team, made, lee = others
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        lee.execute(statement)
    assert team.open("ada").booking(made.id) == made


def test_a_member_books_by_raw_sql_only_for_oneself_and_only_what_is_free(others):
    team, made, lee = others
    row = (
        "INSERT INTO bookings VALUES"
        " (%s, %s, 't', '', %s, %s, 'UTC', 'booked', now(), now(), NULL, NULL, false, NULL, '')"
    )
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        lee.execute(row, ("forged", "kim", NOW, NOW + HOUR))
    lee.execute(row, ("own", "lee", made.start, made.end))
    with pytest.raises(psycopg.errors.ExclusionViolation):
        lee.execute("INSERT INTO booking_gpus (booking_id, gpu) VALUES ('own', 'GPU-a0')")
    # The database replaces the owner and the times in this statement by those of the booking.
    with pytest.raises(psycopg.errors.ExclusionViolation):
        lee.execute(
            "INSERT INTO booking_gpus VALUES ('own', 'GPU-a0', 'lee', %s, %s, false)",
            (NOW + 30 * HOUR, NOW + 31 * HOUR),
        )
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        lee.execute("INSERT INTO booking_gpus (booking_id, gpu) VALUES (%s, 'GPU-b0')", (made.id,))
    lee.execute("INSERT INTO booking_gpus (booking_id, gpu) VALUES ('own', 'GPU-b0')")
    long_ago = datetime(2020, 1, 1, tzinfo=UTC)
    with pytest.raises(psycopg.errors.CheckViolation, match="the past stays as it was"):
        lee.execute(row, ("past", "lee", long_ago, long_ago + HOUR))
    with pytest.raises(psycopg.errors.CheckViolation, match="the past stays as it was"):
        lee.execute("UPDATE bookings SET starts = %s, ends = %s WHERE id = 'own'", (long_ago, long_ago + HOUR))
    with pytest.raises(psycopg.errors.CheckViolation):
        lee.execute(row, ("empty", "lee", NOW, NOW))
    assert {one.id for one in team.open("kim").bookings(NOW, NOW + 40 * HOUR)} == {made.id, "own"}


def test_a_role_that_is_no_member_is_refused_with_the_reason(postgres, database_team):
    with postgres.connect("owner", database_team.place) as owner:
        owner.execute("DROP ROLE IF EXISTS stranger")
        owner.execute("CREATE ROLE stranger LOGIN")
    try:
        with pytest.raises(PermissionDenied) as refused:
            database_team.open("stranger")
        assert "your role `stranger` is no member of the team" in refused.value.message
        assert "setup-team" in refused.value.hint
    finally:
        with postgres.connect("owner", database_team.place) as owner:
            owner.execute("DROP ROLE stranger")


def test_a_database_without_a_calendar_says_how_to_make_one(postgres):
    with pytest.raises(BadUrl, match="has no calendar yet") as refused:
        open_store(postgres.url("kim", "postgres"), "kim")
    assert "setup-team" in refused.value.hint


def test_a_database_or_role_that_the_server_lacks_is_an_error_and_not_tried_again(postgres):
    for url, says, fix in (
        (postgres.url("kim", "nowhere"), "there is no database `nowhere` on", "createdb"),
        (postgres.url("mallory", "team"), "there is no role `mallory` in", "--member mallory"),
    ):
        with pytest.raises(BadUrl, match=says) as refused:
            open_store(url, "kim")
        assert fix in refused.value.hint
        assert "retried" not in refused.value.sentence()


def test_setting_up_again_adds_members_and_changes_no_password(postgres, database_team):
    url = postgres.url("owner", database_team.place)
    try:
        again = setup_team(url, ["kim", "min-jun"], ["ada"])
        assert [(one.name, one.is_admin, one.password is None) for one in again.members] == [
            ("ada", True, True),
            ("kim", False, True),
            ("min-jun", False, False),
        ]
        printed = "\n".join(again.lines())
        assert f"min-jun: bookings_url: postgresql+psycopg://min-jun@/{database_team.place}?host=" in printed
        assert again.members[2].password in printed
        assert database_team.open("min-jun").book(draft("a0", 1, 1)).owner == "min-jun"
    finally:
        database_team.close()
        with postgres.connect("owner", database_team.place) as owner:
            owner.execute('DROP OWNED BY "min-jun"')
            owner.execute('DROP ROLE "min-jun"')


@pytest.mark.parametrize("name", ["", "two words", 'quote"', "pg_read_all_data", "torchyard_admin", "owner"])
def test_a_name_that_cannot_be_a_member_is_refused(postgres, database_team, name):
    with pytest.raises(Refused):
        setup_team(postgres.url("owner", database_team.place), [name])


def test_who_may_not_make_roles_cannot_set_up_a_team(database_team):
    with pytest.raises(PermissionDenied):
        setup_team(database_team.url("kim"), ["somebody"])


def test_a_password_comes_from_the_keyring_where_libpq_finds_none(postgres, database_team, monkeypatch, tmp_path):
    import keyring

    for name in ("PGPASSWORD", "PGPASSFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PGPASSFILE", str(tmp_path / "none"))
    asked = []

    def kept(service: str, name: str) -> str | None:
        asked.append((service, name))
        return postgres.passwords["kim"] if len(asked) > 1 else None

    monkeypatch.setattr(keyring, "get_password", kept)
    url = postgres.tcp_url("kim", database_team.place)
    with pytest.raises(StoreUnavailable) as refused:
        open_store(url, "kim")
    entry = f"kim@127.0.0.1:{postgres.port}/{database_team.place}"
    assert f"keyring set torchyard-bookings {entry}" in refused.value.hint
    open_store(url, "kim").close()
    assert set(asked) == {("torchyard-bookings", entry)}
    (tmp_path / "pgpass").write_text(f"127.0.0.1:{postgres.port}:*:kim:{postgres.passwords['kim']}\n")
    (tmp_path / "pgpass").chmod(0o600)
    monkeypatch.setenv("PGPASSFILE", str(tmp_path / "pgpass"))
    asked.clear()
    open_store(url, "kim").close()
    assert asked == []


def test_a_tls_mode_is_honoured(postgres, database_team, monkeypatch):
    monkeypatch.setenv("PGPASSWORD", postgres.passwords["kim"])
    with pytest.raises(StoreUnavailable, match="server does not support SSL"):
        open_store(postgres.tcp_url("kim", database_team.place) + "?sslmode=require", "kim")


def test_a_database_whose_cable_was_pulled_is_noticed_within_seconds(postgres, database_team, monkeypatch):
    """By default, the kernel would notice the loss only after about fifteen minutes."""
    monkeypatch.setenv("PGPASSWORD", postgres.passwords["kim"])
    store = open_store(postgres.tcp_url("kim", database_team.place), "kim")
    with store.session.engine.connect() as connection:
        used = socket.socket(fileno=os.dup(connection.connection.dbapi_connection.fileno()))
    with used:
        assert used.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 10_000  # The timeout is in milliseconds.
        assert used.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    store.close()


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("postgresql+psycopg://kim:hunter2@db/team", "must not hold a password"),
        ("postgresql+psycopg://kim@db/team?password=hunter2", "must not hold a password"),
        ("mysql://kim@db/team", "not in `mysql`"),
        ("not a url", "cannot be read"),
        ("sqlite://", "names no file"),
        ("postgresql+psycopg://db", "names no role or no database"),
    ],
)
def test_an_address_that_cannot_be_used_is_refused_without_showing_a_password(url, says):
    with pytest.raises(BadUrl) as refused:
        open_store(url, "kim")
    assert says in refused.value.message
    assert "hunter2" not in refused.value.sentence()


def test_a_store_of_a_newer_schema_is_left_alone(team):
    store = team.open("kim")
    made = store.book(draft("a0", 1, 1))
    if team.server is None:
        from sqlalchemy import text

        from torchyard_core.booking.store.database_engine import transaction

        with transaction(store.session.engine, writes=True) as connection:
            connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    else:
        with team.server.connect("owner", team.place) as owner:
            owner.execute("UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(StoreTooNew, match="made by a newer Torchyard than this one; nothing was changed"):
        team.open("kim")
    assert store.booking(made.id) == made


def test_clocks_that_disagree_are_named_and_nothing_is_booked(database_team):
    ahead = datetime.now(UTC) + timedelta(minutes=7)
    store = open_store(database_team.url("kim"), "kim", clock=lambda: ahead)
    try:
        now = store.now()
        assert abs((now - datetime.now(UTC)).total_seconds()) < 60
        with pytest.raises(Refused, match="this computer's clock is 7 min ahead of the one of the bookings database"):
            store.book(draft("a0", 0, 1, start=now + HOUR))
        assert store.count() == 0
    finally:
        store.close()


def test_a_file_that_is_no_calendar_is_refused(tmp_path):
    (tmp_path / "b.sqlite3").write_text("this is not a database, it is a letter to a friend" * 20)
    with pytest.raises(BadUrl, match="is not a bookings file"):
        open_store(f"sqlite:///{tmp_path / 'b.sqlite3'}", "kim")


def test_the_migrations_head_is_what_the_code_was_written_for():
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    from torchyard_core.booking.store.tables import HEAD, KNOWN

    config = Config()
    config.set_main_option("script_location", "torchyard_core.booking.store:migrations")
    scripts = ScriptDirectory.from_config(config)
    assert scripts.get_heads() == [HEAD]
    assert {script.revision for script in scripts.walk_revisions()} == KNOWN

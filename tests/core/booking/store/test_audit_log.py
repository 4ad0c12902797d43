"""Tests of the audit log of bookings, to which only the database's triggers write."""

from __future__ import annotations

import platform
from datetime import timedelta

import psycopg
import pytest
from sqlalchemy import exc, text
from sqlalchemy.engine import make_url

from tests.core.booking.store.test_member_sql import psql
from tests.core.booking.teams import NOW, Team, draft
from torchyard_core.booking.change_history import headline, lines
from torchyard_core.booking.errors import Refused
from torchyard_core.booking.search.slot_search import Wish
from torchyard_core.booking.store.database_engine import make_engine, transaction

HOUR = timedelta(hours=1)


def test_a_change_says_who_when_where_and_from_what_to_what(team: Team) -> None:
    kim, ada = team.open("kim"), team.open("ada")
    made = kim.book(draft("a0 a1", 1, 2))
    other = kim.book(draft("b3", 1, 2))
    ada.change(made.id, end=made.end + HOUR, gpus=["GPU-a1", "GPU-a2"], title="letters")
    ada.mark_active(made.id)
    kim.cancel(made.id)
    first, second, third, fourth = kim.history(made.id)
    assert [(one.person, one.desktop, one.kind) for one in (first, second, third, fourth)] == [
        ("kim", platform.node(), "made"),
        ("ada", platform.node(), "changed"),
        ("ada", platform.node(), "changed"),
        ("kim", platform.node(), "changed"),
    ]
    assert {one.field: (one.before, one.after) for one in second.fields} == {
        "title": ("digits", "letters"),
        "ends": (made.end, made.end + HOUR),
        "gpus": (("GPU-a0", "GPU-a1"), ("GPU-a1", "GPU-a2")),
    }
    assert [(one.field, one.before, one.after) for one in third.fields] == [("state", "booked", "active")]
    assert {one.field for one in fourth.fields} == {"state", "let_go_at"}
    assert len(kim.history(other.id)) == 1
    assert "2031-01-06T12:00:00Z" in {one["after"] for one in second.to_json()["fields"] if one["field"] == "ends"}
    assert headline(second, "UTC").endswith(f"  ada ({platform.node()}) changed it")
    assert lines(second, kim.slots(), "UTC") == [
        "title: digits → letters",
        "end: Mon 2031-01-06 11:00 → Mon 2031-01-06 12:00",
        "GPUs: gpu-a:0-1 → gpu-a:1-2",
    ]
    assert "GPUs: gpu-a:0-1" in lines(first, kim.slots(), "UTC")


def test_one_who_frees_a_place_stands_in_the_history_of_what_was_booked_there(database_team: Team) -> None:
    kim, lee = database_team.open("kim"), database_team.open("lee")
    booking = kim.book(draft("a0", 0, 8))
    lee.wait(Wish(1, 2 * HOUR, NOW, gpus=("GPU-a0",), latest=NOW + 8 * HOUR), "lee waits")
    kim.release(booking.id)
    (served,) = kim.serve_waiting()
    assert [(one.person, one.kind) for one in lee.history(served.id)] == [("kim", "made")]


def test_a_refused_change_leaves_no_trace(team: Team) -> None:
    kim = team.open("kim")
    made = kim.book(draft("a0", 1, 2))
    kim.book(draft("a1", 1, 2))
    with pytest.raises(Refused):
        kim.change(made.id, gpus=["GPU-a1"])
    assert len(kim.history(made.id)) == 1


def test_sql_past_torchyard_is_noted_too_and_the_history_cannot_be_changed(database_team: Team) -> None:
    server = database_team.server
    assert server is not None
    made = database_team.open("kim").book(draft("a0", 1, 2))
    assert psql(server, "kim", database_team.place, "UPDATE bookings SET title = 'other';")[0] == 0
    changes = database_team.open("lee").history(made.id)
    assert [(one.person, one.desktop, one.kind) for one in changes][1:] == [("kim", "psql", "changed")]
    for person in ("kim", "ada"):
        for statement in (
            "UPDATE booking_history SET person = 'lee'",
            "DELETE FROM booking_history",
            "TRUNCATE booking_history",
            "INSERT INTO booking_history (at, step, booking_id, person, desktop) VALUES (now(), 1, 'x', 'lee', '')",
        ):
            with server.connect(person, database_team.place) as member, pytest.raises(psycopg.Error, match="denied"):
                member.execute(statement)


@pytest.mark.parametrize("statement", ["UPDATE booking_history SET person = 'lee'", "DELETE FROM booking_history"])
def test_the_history_of_a_file_is_append_only(tmp_path, clock, statement: str) -> None:
    team = Team(clock, None, f"sqlite:///{tmp_path / 'b.sqlite3'}")
    try:
        kim = team.open("kim")
        kim.remember_slots(team.slots)
        made = kim.book(draft("a0", 1, 2))
        with (
            pytest.raises((Refused, exc.DBAPIError), match="past"),
            transaction(kim.session.engine, writes=True) as connection,
        ):
            connection.execute(text(statement))
        assert [one.person for one in kim.history(made.id)] == ["kim"]
        with transaction(kim.session.engine) as connection:
            assert connection.execute(text("SELECT count(*) FROM acting")).scalar() == 0
    finally:
        team.close()


def test_a_file_of_an_older_torchyard_gets_a_history_from_then_on(tmp_path, clock) -> None:
    from alembic import command
    from alembic.config import Config

    team = Team(clock, None, f"sqlite:///{tmp_path / 'b.sqlite3'}")
    engine = make_engine(make_url(team.place))
    with transaction(engine, writes=True) as connection:
        config = Config()
        config.set_main_option("script_location", "torchyard_core.booking.store:migrations")
        config.attributes["connection"] = connection
        command.upgrade(config, "0002")
        connection.exec_driver_sql(
            "INSERT INTO bookings VALUES ('old', 'kim', 't', '', 1925456400, 1925460000, 'UTC', 'booked', 1, 1,"
            " NULL, NULL, 0, NULL, '')"
        )
    engine.dispose()
    try:
        kim = team.open("kim")
        assert kim.history("old") == ()
        kim.cancel("old")
        assert [(one.person, one.kind) for one in kim.history("old")] == [("kim", "changed")]
    finally:
        team.close()


def test_a_change_that_was_made_in_slurm_is_recorded_as_slurm_s(team: Team) -> None:
    kim = team.open("kim")
    made = kim.book(draft("a0", 1, 2))
    with kim.in_the_name_of("hpc"):
        kim.change(made.id, title="moved")
    kim.change(made.id, title="mine")
    changes = kim.history(made.id)
    assert [(one.desktop, one.cluster) for one in changes] == [
        (platform.node(), ""),
        ("slurm:hpc", "hpc"),
        (platform.node(), ""),
    ]
    assert headline(changes[1], "UTC").endswith("  Slurm (hpc) changed it")

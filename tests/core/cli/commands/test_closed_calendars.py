"""Tests of calendars that a command must not change: one of a newer Torchyard, one that a role may not use, and one
with a wrong clock.

Each error has a message, a next step and an exit code, and no row of the database is changed.
"""

from __future__ import annotations

import json
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.core.booking.cluster import Cluster
from tests.core.cli.command_runner import answer, torchyard
from tests.core.cli.commands.test_bookings import with_fleet
from tests.lab import Desktop
from torchyard_core.booking.store.tables import metadata

MakeDesktop = Callable[..., Desktop]
OWNER = "owner"
ASKING = (["bookings", "list"], ["bookings", "find", "1", "--for", "2h"], ["bookings", "rules"])
CHANGING = (
    ["book", "gpu-b:0", "--to", "+2h"],
    ["bookings", "wait", "1", "--for", "2h"],
    ["bookings", "rules", "--set", "longest_h=4"],
    ["bookings", "logins", "--add", "gpu-*:ubuntu=kim"],
)

TRAINING = """
version: 1
name: train
pools: [{name: workers, role: worker, replicas: 1, gpus: 1}]
program: {launcher: command, command: [python3, train.py]}
"""


@pytest.fixture
def server(postgres: Cluster) -> Iterator[Cluster]:
    """Yields the PostgreSQL server. The team's calendar is empty before and after the test."""
    postgres.empty()
    yield postgres
    postgres.empty()


@pytest.fixture(params=["sqlite", "postgres"])
def calendar(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Callable[[str], list[Any]]]:
    """Yields the URL of a calendar, and a function that runs raw SQL on it, bypassing all rules."""
    if request.param == "sqlite":
        file = tmp_path / "team.sqlite3"

        def past(statement: str) -> list[Any]:
            with closing(sqlite3.connect(file, isolation_level=None)) as connection:
                return connection.execute(statement).fetchall()

        return f"sqlite:///{file}", past
    server: Cluster = request.getfixturevalue("server")
    return server.url("kim", "team"), lambda statement: on_server(server, statement)


def on_server(server: Cluster, statement: str) -> list[Any]:
    with server.connect(OWNER, "team") as connection:
        done = connection.execute(statement)
        return done.fetchall() if done.description else []


def contents(sql: Callable[[str], list[Any]]) -> dict[str, list[Any]]:
    """Returns the rows of all tables of the calendar except for that of the schema's version, by table name."""
    return {name: sql(f"SELECT * FROM {name} ORDER BY 1, 2") for name in metadata.tables if name != "alembic_version"}


def error_of(desktop: Desktop, *arguments: str, code: int = 1) -> dict[str, Any]:
    """Runs a command that must fail; returns its error, and asserts that stderr contains the error's message."""
    done = torchyard(desktop, *arguments, "--json", code=code)
    error: dict[str, Any] = json.loads(done.stdout)["error"]
    assert error["message"] in done.stderr
    return error


def test_a_calendar_of_a_newer_torchyard_is_left_alone(
    calendar: tuple[str, Callable[[str], list[Any]]], make_desktop: MakeDesktop
) -> None:
    url, sql = calendar
    kim = with_fleet(make_desktop(), bookings_url=url, person="kim")
    booked = answer(kim, "book", "gpu-a:0", "--to", "+4h")
    sql("UPDATE alembic_version SET version_num = '9999'")
    before = contents(sql)
    assert len(before["bookings"]) == 1

    for command in (*ASKING, *CHANGING, ["bookings", "cancel", booked["id"]]):
        error = error_of(kim, *command)
        assert error["code"] == "store_too_new"
        assert error["message"].endswith("was made by a newer Torchyard than this one; nothing was changed.")
        assert "pip install --upgrade torchyard" in error["hint"]
    own = with_fleet(make_desktop(), person="kim")
    answer(own, "book", "gpu-a:1", "--to", "+4h")
    assert error_of(own, "bookings", "move-to", url, "-y")["code"] == "store_too_new"
    (kim.directory / "train.yaml").write_text(TRAINING)
    assert "made by a newer Torchyard" in torchyard(kim, "run", "train.yaml", "--book", "2h", code=1).stderr
    # `status` needs the calendar to show which GPUs are free.
    kim.fleet_file.write_text("version: 1\nhosts: []\n")
    assert "made by a newer Torchyard" in torchyard(kim, "status", code=1).stderr

    assert contents(sql) == before
    assert sql("SELECT version_num FROM alembic_version") == [("9999",)]


@pytest.mark.parametrize("wish", ["junk", "{}", "[[", '{"count": "x"}', "[" * 20000])
def test_an_entry_that_cannot_be_read_is_named_and_fails_no_command(
    make_desktop: MakeDesktop, tmp_path: Path, wish: str
) -> None:
    file = tmp_path / "team.sqlite3"
    kim = with_fleet(make_desktop(), bookings_url=f"sqlite:///{file}", person="kim")
    answer(kim, "book", "gpu-a:0", "--to", "+4h")
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        row = ("junk", "lee", "t", wish, "UTC", 0, "waiting", None)
        connection.execute("INSERT INTO waitlist VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
    kim.fleet_file.write_text("version: 1\nhosts: []\n")
    done = torchyard(kim, "status")
    assert "the entry junk of lee in the waitlist cannot be read, and was left out" in done.stderr


def test_rules_that_cannot_be_read_are_an_error_of_the_calendar_alone(
    make_desktop: MakeDesktop, tmp_path: Path
) -> None:
    file = tmp_path / "team.sqlite3"
    kim = with_fleet(make_desktop(), bookings_url=f"sqlite:///{file}", person="kim")
    answer(kim, "book", "gpu-a:0", "--to", "+4h")
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        connection.execute("INSERT INTO rules VALUES (1, '{')")
    assert error_of(kim, "bookings", "rules")["code"] == "store_unreadable"
    kim.fleet_file.write_text("version: 1\nhosts: []\n")
    done = torchyard(kim, "status")
    assert "the calendar was not synchronised" in done.stderr
    assert "holds a value that cannot be read: the rules" in done.stderr


def test_a_newer_teams_calendar_is_not_set_up_again(server: Cluster, make_desktop: MakeDesktop) -> None:
    on_server(server, "UPDATE alembic_version SET version_num = '9999'")
    roles = on_server(server, "SELECT rolname FROM pg_roles ORDER BY 1")
    error = error_of(make_desktop(), "bookings", "setup-team", server.url(OWNER, "team"), "--member", "mia")
    assert error["code"] == "store_too_new"
    assert on_server(server, "SELECT rolname FROM pg_roles ORDER BY 1") == roles


def test_the_refusal_of_a_role_without_rights_names_who_gives_them(server: Cluster, make_desktop: MakeDesktop) -> None:
    kim = with_fleet(make_desktop(), bookings_url=server.url("kim", "team"))
    booked = answer(kim, "book", "gpu-a:0", "--to", "+4h")
    on_server(server, "CREATE ROLE stranger LOGIN")
    try:
        before = contents(lambda statement: on_server(server, statement))
        stranger = with_fleet(make_desktop(), bookings_url=server.url("stranger", "team"))
        for command in (*ASKING, *CHANGING, ["bookings", "cancel", booked["id"]]):
            error = error_of(stranger, *command)
            assert error["code"] == "no_rights"
            assert "your role `stranger` is no member of the team" in error["message"]
            assert "setup-team URL --member NAME" in error["hint"]
        # If a member runs an admin command, the refusal must state the reason.
        for command in CHANGING[2:]:
            assert "only an admin can change" in error_of(kim, *command)["message"]
        own = with_fleet(make_desktop(), person="kim")
        answer(own, "book", "gpu-a:1", "--to", "+4h")
        assert (
            "only an admin can move" in error_of(own, "bookings", "move-to", server.url("kim", "team"), "-y")["message"]
        )
        assert (
            error_of(kim, "bookings", "setup-team", server.url("kim", "team"), "--member", "mia")["code"] == "no_rights"
        )
        assert contents(lambda statement: on_server(server, statement)) == before
    finally:
        on_server(server, "DROP ROLE stranger")


AHEAD = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <time.h>

int clock_gettime(clockid_t clock, struct timespec *now) {
    int (*real)(clockid_t, struct timespec *) = dlsym(RTLD_NEXT, "clock_gettime");
    int failed = real(clock, now);
    if (!failed && clock == CLOCK_REALTIME) now->tv_sec += 7 * 60;
    return failed;
}
"""


def test_on_a_computer_whose_clock_is_wrong_nothing_is_booked(
    server: Cluster, make_desktop: MakeDesktop, tmp_path: Path
) -> None:
    kim = with_fleet(make_desktop(), bookings_url=server.url("kim", "team"))
    answer(kim, "book", "gpu-a:0", "--to", "+4h")
    before = contents(lambda statement: on_server(server, statement))
    (tmp_path / "ahead.c").write_text(AHEAD)
    library = tmp_path / "ahead.so"
    build = ["gcc", "-shared", "-fPIC", "-o", str(library), str(tmp_path / "ahead.c"), "-ldl"]
    subprocess.run(build, check=True, capture_output=True)

    process = kim.start("book", "gpu-b:0", "--to", "+2h", "--json", env={"LD_PRELOAD": str(library)})
    stdout, stderr = process.communicate(timeout=60)
    error = json.loads(stdout)["error"]
    assert (process.returncode, error["code"]) == (1, "clock")
    assert "this computer's clock is 7 min ahead of the one of the bookings database" in error["message"]
    assert "nothing was booked" in error["message"]
    assert "timedatectl set-ntp true" in error["hint"]
    assert error["message"] in stderr
    assert contents(lambda statement: on_server(server, statement)) == before

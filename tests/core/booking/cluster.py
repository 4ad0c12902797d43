"""A temporary PostgreSQL cluster for tests, on a free port, run by an unprivileged user."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from tests.ports import free_port
from torchyard_core.booking.store import setup_team
from torchyard_core.booking.store.tables import HEAD

ADMIN = "ada"
MEMBERS = ("kim", "lee")
RAW_NOW = "2031-01-06T08:00Z"
"""Raw SQL for `teams.NOW`, the current time according to the tests' clock."""
_TEST_CLOCK = """
    CREATE OR REPLACE FUNCTION torchyard.clock() RETURNS timestamptz LANGUAGE sql VOLATILE
    SET search_path = pg_catalog, torchyard, pg_temp AS
    $$ SELECT coalesce(nullif(current_setting('torchyard_test.now', true), '')::timestamptz, clock_timestamp()) $$
"""
_HBA = """\
local all all trust
host all all 127.0.0.1/32 scram-sha-256
"""


class NoPostgres(Exception):
    """Raised when PostgreSQL is not installed."""


def bindir() -> Path:
    """Returns the folder that contains the server's programs. Raises NoPostgres."""
    found = [
        *sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True),
        Path(shutil.which("initdb") or "/").parent,
    ]
    for folder in found:
        if (folder / "initdb").exists() and (folder / "pg_ctl").exists():
            return folder
    raise NoPostgres("This machine has no PostgreSQL server (Debian package postgresql).")


@dataclass
class Cluster:
    """A running PostgreSQL server. `owner` is its superuser; connections over its socket need no password."""

    folder: Path
    port: int
    passwords: dict[str, str]

    def url(self, person: str, database: str) -> str:
        return f"postgresql+psycopg://{person}@/{database}?host={self.folder}&port={self.port}"

    def tcp_url(self, person: str, database: str) -> str:
        """Returns the URL of a database over TCP, which requires a password."""
        return f"postgresql+psycopg://{person}@127.0.0.1:{self.port}/{database}"

    def connect(self, person: str, database: str) -> psycopg.Connection:
        """Opens a connection for raw SQL that commits after each statement."""
        return psycopg.connect(
            host=str(self.folder),
            port=self.port,
            user=person,
            dbname=database,
            autocommit=True,
            options=f"-csearch_path=torchyard,public -ctorchyard_test.now={RAW_NOW}",
        )

    def empty(self) -> str:
        """Empties the team's database. Creating a new database instead would take a second per test."""
        with self.connect("owner", "team") as connection:
            connection.execute(
                "TRUNCATE gpus, series, bookings, booking_gpus, waitlist, uses, idle_evidence, rules, logins,"
                " booking_history"
            )
            connection.execute("UPDATE alembic_version SET version_num = %s", (HEAD,))
        return "team"

    def ctl(self, *words: str) -> None:
        _run(self.folder, bindir() / "pg_ctl", "-D", self.folder / "data", "-w", "-s", *words)

    def start(self) -> None:
        options = f"-p {self.port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={self.folder}"
        self.ctl("-l", str(self.folder / "log"), "-o", options, "start")

    def stop(self) -> None:
        self.ctl("-m", "immediate", "stop")


@contextmanager
def cluster(*, fsync: bool = False) -> Iterator[Cluster]:
    """Yields a server whose database `team` has a calendar, two members and an admin. Removes the server afterwards."""
    programs = bindir()
    folder = Path(tempfile.mkdtemp(prefix="torchyard-pg-"))
    made = Cluster(folder, free_port(), {})
    try:
        if (user := _unprivileged()) is not None:
            os.chown(folder, user.pw_uid, user.pw_gid)
        _run(
            folder, programs / "initdb", "-D", folder / "data", "-U", "owner", "-A", "trust", "-E", "UTF8", "--no-sync"
        )
        with (folder / "data" / "postgresql.conf").open("a") as settings:
            settings.write(f"fsync = {'on' if fsync else 'off'}\nmax_connections = 150\nshared_buffers = 64MB\n")
        (folder / "data" / "pg_hba.conf").write_text(_HBA)
        made.start()
        try:
            with made.connect("owner", "postgres") as connection:
                connection.execute("CREATE DATABASE team")
            team = setup_team(made.url("owner", "team"), MEMBERS, [ADMIN])
            with made.connect("owner", "team") as connection:
                connection.execute(_TEST_CLOCK)
            made.passwords.update({one.name: one.password for one in team.members if one.password})
            yield made
        finally:
            if (folder / "data" / "postmaster.pid").exists():  # A failed test may have left the server stopped.
                made.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _unprivileged() -> pwd.struct_passwd | None:
    """Returns an unprivileged user to run PostgreSQL, whose initdb refuses to run as root."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise NoPostgres("There is no user `postgres` to run PostgreSQL as (Debian package postgresql).")


def _run(folder: Path, *command: object) -> None:
    user = _unprivileged()
    who: dict[str, Any] = {}
    if user is not None:
        who = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
    with (folder / "ctl.log").open("ab") as log:
        done = subprocess.run(
            [str(word) for word in command],
            stdout=log,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            cwd=folder,
            timeout=60,
            check=False,
            **who,
        )
    if done.returncode:
        raise RuntimeError(f"{command[0]} failed: {(folder / 'ctl.log').read_text()}")

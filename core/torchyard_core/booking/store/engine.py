"""Opens either database, runs transactions on it, and says in plain words why one cannot be.

SQLite: every writing transaction is BEGIN IMMEDIATE. Deferred ones end in "database is locked" when two of them want
to write after both have read.
"""

from __future__ import annotations

import platform
import secrets
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, QueuePool, create_engine, event, exc, text
from sqlalchemy.engine import URL, make_url

from torchyard_core.booking.errors import BadUrl, NoRights, Refused, StoreAway, StoreUnreadable
from torchyard_core.booking.rules.team_rules import RULE_CODES
from torchyard_core.booking.store.passwords import kept_password, keyring_name
from torchyard_core.errors import TorchyardError

BUSY_S = 30
CONNECT_S = 5
_WRITES = "torchyard_writes"
_ACTS = "torchyard_acts"
_FULL = ("too many clients already", "remaining connection slots are reserved", "too many connections for")
"""What a full server says; libpq's errors of connecting carry no SQLSTATE."""
_RULES = RULE_CODES | {"unknown_gpu", "no_fit", "isolation"}
"""Codes of refusals that functions of the database raise as names of constraints."""


class Overlap(Exception):
    """A GPU is taken: what the trigger or the constraint says. Whoever wrote looks again whose it is."""


def parsed(url: str) -> URL:
    """The address of one of the two kinds of database. Raises BadUrl; one that holds a password is never shown."""
    hint = "Write sqlite:////path/to/bookings.sqlite3, or postgresql+psycopg://NAME@HOST/DATABASE?sslmode=verify-full."
    try:
        made = make_url(url)
    except (exc.ArgumentError, ValueError):
        raise BadUrl("the address of the bookings database cannot be read", hint=hint) from None
    if made.password is not None or "password" in made.query:
        made = made.set(password=None).difference_update_query(["password"])
        raise BadUrl(
            f"the address of the bookings database must not hold a password: {made.render_as_string()}",
            hint=f"Take it out, and keep it in the keyring (`keyring set {keyring_name(made)}`) or in ~/.pgpass.",
        )
    if made.drivername in ("postgresql", "postgres"):
        made = made.set(drivername="postgresql+psycopg")
    if made.drivername not in ("sqlite", "postgresql+psycopg"):
        raise BadUrl(f"bookings are kept in SQLite or PostgreSQL, not in `{made.drivername}`", hint=hint)
    if made.drivername == "sqlite" and not made.database:
        raise BadUrl("the address of the bookings database names no file", hint=hint)
    if made.drivername != "sqlite" and (not made.database or not made.username):
        raise BadUrl("the address of the bookings database names no role or no database", hint=hint)
    return made


def place_of(url: URL) -> str:
    """Where it is, for sentences."""
    if url.get_backend_name() == "sqlite":
        return f"the bookings file {url.database}"
    host = url.host or url.query.get("host") or "this computer"
    return f"the bookings database {url.database} on {host}"


SOON_NOTICED = {"keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3, "tcp_user_timeout": 10_000}
"""libpq's settings (s, s, -, ms) for a cable that was pulled: the kernel alone would wait for minutes, and whoever asks
holds the calendar's lock meanwhile."""


def make_engine(url: URL) -> Engine:
    """Connects to nothing yet. Raises BadUrl where the driver is not installed. In PostgreSQL all threads share one
    connection: a server has few of them, and every desktop of the team needs one."""
    if url.get_backend_name() == "sqlite":
        return _sqlite(url)
    try:
        engine = create_engine(
            url,
            pool_pre_ping=True,
            pool_size=1,
            max_overflow=0,
            connect_args={
                **SOON_NOTICED,
                "connect_timeout": CONNECT_S,
                "application_name": f"torchyard {platform.node()}"[:63],
                "options": "-csearch_path=torchyard,public -clock_timeout=20s -ctimezone=UTC",
            },
        )
    except ImportError:
        raise BadUrl(
            "PostgreSQL needs the library psycopg, which is not installed",
            hint="Install it: `pip install 'torchyard[postgres]'`.",
        ) from None

    @event.listens_for(engine, "do_connect")
    def connect(dialect: Any, record: Any, args: Any, settings: dict[str, Any]) -> Any:
        return connect_with_password(url, args, settings)

    return engine


def keep_connection(engine: Engine, keeps: bool) -> None:
    """Whether the connection stays open between transactions, as it does at first."""
    listens = event.contains(engine, "checkin", _close_returned)
    if keeps and listens:
        event.remove(engine, "checkin", _close_returned)
    elif not keeps and not listens:
        event.listen(engine, "checkin", _close_returned)
        if isinstance(engine.pool, QueuePool) and engine.pool.checkedin():
            with suppress(TorchyardError), transaction(engine):
                pass  # it is closed as it is returned


def close_engine(engine: Engine) -> None:
    """Close all connections: those that another thread still uses, as soon as it returns them to the pool."""
    if not event.contains(engine, "checkin", _close_returned):
        event.listen(engine, "checkin", _close_returned)
    engine.dispose()


def _close_returned(connection: Any, record: Any) -> None:
    record.invalidate()  # not connection.close(): the pool would hand the closed connection out again


def connect_with_password(url: URL, args: Any, settings: dict[str, Any]) -> Any:
    """As libpq finds it (PGPASSWORD, ~/.pgpass, a certificate); asks the keyring only where that was not enough."""
    import psycopg

    try:
        return psycopg.connect(*args, **settings)
    except psycopg.OperationalError as error:
        wants_password = "password" in str(error).lower()
        password = kept_password(url) if wants_password else None
        if password is None:
            raise
        return psycopg.connect(*args, **{**settings, "password": password})


def _sqlite(url: URL) -> Engine:
    path = Path(str(url.database)).expanduser()
    engine = create_engine(url.set(database=str(path)), connect_args={"timeout": BUSY_S, "check_same_thread": False})

    @event.listens_for(engine, "connect")
    def connected(connection: sqlite3.Connection, record: Any) -> None:
        connection.isolation_level = None  # we say BEGIN ourselves
        connection.execute("PRAGMA journal_mode = WAL")
        # A killed program loses nothing; a power cut may take the last bookings with it, and never the file.
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA foreign_keys = ON")

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        writes = connection.get_execution_options().get(_WRITES)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
        if writes and (person := connection.get_execution_options().get(_ACTS)):
            step = secrets.randbits(62)
            connection.exec_driver_sql("INSERT INTO acting VALUES (?, ?, ?)", (step, person, platform.node()))

    @event.listens_for(engine, "commit")
    def commit(connection: Connection) -> None:
        if connection.get_execution_options().get(_WRITES) and connection.get_execution_options().get(_ACTS):
            connection.exec_driver_sql("DELETE FROM acting")

    return engine


def act_as(engine: Engine, person: str) -> None:
    """Names the person in the history of a file's bookings. In PostgreSQL the role stands there."""
    if engine.dialect.name == "sqlite":
        engine.update_execution_options(**{_ACTS: person})


@contextmanager
def transaction(engine: Engine, *, writes: bool = False) -> Iterator[Connection]:
    """One transaction: committed at the end, rolled back on any error.

    Raises Overlap, StoreAway, NoRights, Refused (the past is to be changed); other errors of the database as they are.
    """
    try:
        with engine.connect() as connection:
            if writes:
                connection = connection.execution_options(**{_WRITES: True})
            with connection.begin():
                yield connection
    except exc.DBAPIError as error:
        raise _explained(error, engine.url) from error
    except exc.TimeoutError as error:
        raise StoreAway(f"{place_of(engine.url)} is busy: no connection became free", hint="Try again.") from error


def _explained(error: exc.DBAPIError, url: URL) -> Exception:
    said = str(error.orig).strip()
    first = said.splitlines()[0] if said else type(error.orig).__name__
    place = place_of(url)
    if "torchyard: overlap" in said:
        return Overlap()
    if url.get_backend_name() == "sqlite":
        return _explained_sqlite(error, first, place)
    code = str(getattr(error.orig, "sqlstate", None) or "")
    if code in ("23P01", "40P01", "40001"):
        return Overlap()
    if "torchyard: the past" in said:
        return Refused("that would change the past, which stays as it was", code="past", hint="Book anew from now on.")
    if rule := _rule(error.orig):
        why = first.removeprefix("torchyard: ")
        return Refused(why, code=rule, hint="See `torchyard bookings rules`.")
    if code == "23514":
        return Refused(f"{place} refuses a value: {first}", code="bad_value", hint="Change it, and try again.")
    if missing := _missing(said, url):
        return missing
    if code == "42501":
        return NoRights(
            f"your role `{url.username}` may not do that in {place}: {first}",
            hint=f"Ask an admin of the team: `torchyard bookings setup-team` makes {url.username} a member.",
        )
    if code.startswith("28") or "authentication failed" in said or "no password supplied" in said:
        return StoreAway(
            f"{place} does not let {url.username} in: {_server_said(said)}",
            hint=f"Keep the password in the keyring (`keyring set {keyring_name(url)}`) or in ~/.pgpass.",
        )
    if code == "53300" or any(words in said for words in _FULL):
        return StoreAway(
            f"{place} has no connection left: as many programs use the server as it lets in",
            hint="Close calendars that are not needed, and try again; an admin of the server raises max_connections.",
        )
    if isinstance(error, exc.OperationalError | exc.InterfaceError) or error.connection_invalidated:
        return StoreAway(f"{place} does not answer: {_server_said(said)}", hint="It is tried again by itself.")
    if isinstance(error, exc.DataError):
        return StoreUnreadable(place, first)
    return error


def _rule(error: BaseException | None) -> str:
    """The rule of the team by which the database refused, as functions of the database name it."""
    named = str(getattr(getattr(error, "diag", None), "constraint_name", None) or "")
    return named if named in _RULES else ""


def _missing(said: str, url: URL) -> BadUrl | None:
    """A database or role that the server does not have: trying again would not help. libpq's errors of connecting carry
    no SQLSTATE."""
    if f'database "{url.database}" does not exist' in said:
        return BadUrl(
            f"there is no database `{url.database}` on {url.host or url.query.get('host') or 'this computer'}",
            hint="Correct `bookings_url`, or create the database (`createdb`) and the calendar in it: "
            "`torchyard bookings setup-team URL`.",
        )
    if f'role "{url.username}" does not exist' in said:
        return BadUrl(
            f"there is no role `{url.username}` in {place_of(url)}",
            hint=f"Correct `bookings_url`, or ask an admin of the team to run "
            f"`torchyard bookings setup-team URL --member {url.username}`.",
        )
    return None


def _server_said(said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return (lines[-1] if lines else "the connection was lost").removeprefix("FATAL:").strip().rstrip(".")


def _explained_sqlite(error: exc.DBAPIError, first: str, place: str) -> Exception:
    if "locked" in first:
        return StoreAway(f"{place} is busy: another program writes to it", hint="Try again.")
    if "readonly" in first or "read-only" in first:
        return NoRights(f"{place} cannot be written", hint="Check the rights of the file and of its folder.")
    if "not a database" in first or "malformed" in first:
        return BadUrl(f"{place} is not a bookings file, or a damaged one: {first}", hint="Name another file.")
    if isinstance(error, exc.OperationalError):
        return StoreAway(f"{place} cannot be used: {first}", hint="Check that its folder is there and has room.")
    return error


def has_calendar(connection: Connection) -> str | None:
    """The schema's version, or None where there is no calendar yet."""
    if connection.dialect.name == "sqlite":
        there = connection.execute(text("SELECT 1 FROM sqlite_master WHERE name = 'alembic_version'")).first()
    else:
        there = connection.execute(text("SELECT to_regclass('torchyard.alembic_version')")).scalar()
    if not there:
        return None
    version: str | None = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
    return version


def upgrade(connection: Connection) -> None:
    """Brings the schema to this version's, inside the transaction of `connection`."""
    # Alembic takes a fifth of a second to import, and is needed once in a database's life.
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", "torchyard_core.booking.store:migrations")
    config.attributes["connection"] = connection
    command.upgrade(config, "head")

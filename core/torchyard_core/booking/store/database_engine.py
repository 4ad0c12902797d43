"""Connections and transactions for SQLite and PostgreSQL. Database errors are converted to Torchyard's errors.

SQLite: every write transaction begins with BEGIN IMMEDIATE. Two deferred transactions that write after a read would
fail with "database is locked".
"""

from __future__ import annotations

import platform
import secrets
import sqlite3
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, QueuePool, create_engine, event, exc, text
from sqlalchemy.engine import URL, make_url

from torchyard_core.booking.errors import (
    BadUrl,
    DatabaseLoginRefused,
    PermissionDenied,
    Refused,
    StoreUnavailable,
    StoreUnreadable,
)
from torchyard_core.booking.rules.team_rules import RULE_CODES
from torchyard_core.errors import TorchyardError
from torchyard_core.next_steps import SetUpTeam, ShowRules

BUSY_S = 30
CONNECT_S = 5
_KEYRING_SERVICE = "torchyard-bookings"
_WRITES = "torchyard_writes"
_ACTS = "torchyard_acts"
_FULL = ("too many clients already", "remaining connection slots are reserved", "too many connections for")
"""Parts of the error messages of a server that has no free connections.

The messages are compared because libpq's connection errors have no SQLSTATE.
"""
_RULES = RULE_CODES | {"unknown_gpu", "no_fit", "isolation"}
"""Codes of refusals by the rules. Database functions raise errors with these codes as constraint names."""


_recorded_as: ContextVar[str] = ContextVar("recorded_as", default="")


@contextmanager
def recorded_as(desktop: str) -> Iterator[None]:
    """Records changes that this thread makes within the context as changes by `desktop`, not by this computer."""
    token = _recorded_as.set(desktop)
    try:
        yield
    finally:
        _recorded_as.reset(token)


class PoolHooks:
    """Callbacks that are called when a connection is taken from the engine's pool.

    Callbacks can be added and removed while other threads take connections. With SQLAlchemy's own listeners, adding
    one in a thread may cause another thread to fail with "deque mutated during iteration".
    """

    def __init__(self, engine: Engine) -> None:
        self.closes_returned = False
        """Whether connections are closed when they are returned to the pool."""
        self._on_checkout: tuple[Callable[[Any, Any], None], ...] = ()
        event.listen(engine, "checkout", self._obtained)
        event.listen(engine, "checkin", self._returned)

    def add(self, on_checkout: Callable[[Any, Any], None]) -> None:
        """Registers `on_checkout`, which is called with each connection taken from the pool and its pool record."""
        self._on_checkout += (on_checkout,)

    def remove(self, on_checkout: Callable[[Any, Any], None]) -> None:
        self._on_checkout = tuple(each for each in self._on_checkout if each != on_checkout)

    def _obtained(self, connection: Any, record: Any, proxy: Any) -> None:
        for call in self._on_checkout:
            call(connection, record)

    def _returned(self, connection: Any, record: Any) -> None:
        if self.closes_returned:
            record.invalidate()  # After connection.close(), the pool would hand out the closed connection.


_HOOKS: weakref.WeakKeyDictionary[Engine, PoolHooks] = weakref.WeakKeyDictionary()


def hooks_of(engine: Engine) -> PoolHooks:
    """Returns the hooks of an engine made by `make_engine`."""
    return _HOOKS[engine]


class Overlap(Exception):
    """Raised when the database prevents a double booking, and after a deadlock or a serialization failure.

    `WriteTransactions` then repeats the transaction.
    """


def parsed(url: str) -> URL:
    """Parses `bookings_url`. Raises BadUrl if it is invalid or contains a password, which the message does not show."""
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
    """Returns the name of the database for messages."""
    if url.get_backend_name() == "sqlite":
        return f"the bookings file {url.database}"
    host = url.host or url.query.get("host") or "this computer"
    return f"the bookings database {url.database} on {host}"


KEEPALIVE_SETTINGS = {
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}
"""libpq's settings for detecting a broken connection: seconds, seconds, a count, and milliseconds.

With the kernel's defaults, detection would take minutes, during which the calendar's lock would be held.
"""


def make_engine(url: URL, password: str = "") -> Engine:
    """Creates an engine without connecting. Raises BadUrl if the driver is not installed.

    All threads share one connection to PostgreSQL, since a server allows few connections and each desktop of the team
    needs one.

    Args:
        url: The URL of the database.
        password: The password of the role. By default, libpq's own mechanisms and the keyring are used.
    """
    engine = _sqlite(url) if url.get_backend_name() == "sqlite" else _postgresql(url, password)
    _HOOKS[engine] = PoolHooks(engine)
    return engine


def _connect_args(search_path: str) -> dict[str, Any]:
    """Returns libpq's settings for a connection whose unqualified names are in the schemas of `search_path`."""
    return {
        **KEEPALIVE_SETTINGS,
        "connect_timeout": CONNECT_S,
        "application_name": f"torchyard {platform.node()}"[:63],
        "options": f"-csearch_path={search_path} -clock_timeout=20s -ctimezone=UTC",
    }


def connector(url: URL, search_path: str, password: str = "") -> Callable[[], Any]:
    """Returns a function that opens a connection, for an engine that another library creates.

    Unlike a URL, the function can use the password in the keyring.
    """
    args, settings = url.get_dialect()().create_connect_args(url)
    given = {"password": password} if password else {}
    return lambda: connect_with_password(url, args, {**settings, **_connect_args(search_path), **given})


def _postgresql(url: URL, password: str) -> Engine:
    try:
        settings = _connect_args("torchyard,public")
        engine = create_engine(url, pool_pre_ping=True, pool_size=1, max_overflow=0, connect_args=settings)
    except ImportError:
        message = "PostgreSQL needs the library psycopg, which is not installed"
        raise BadUrl(message, hint="Install it: `pip install 'torchyard[postgres]'`.") from None

    @event.listens_for(engine, "do_connect")
    def connect(dialect: Any, record: Any, args: Any, settings: dict[str, Any]) -> Any:
        return connect_with_password(url, args, settings | ({"password": password} if password else {}))

    return engine


def keep_connection(engine: Engine, keeps: bool) -> None:
    """Sets whether the connection stays open between transactions. By default, it stays open."""
    hooks = hooks_of(engine)
    was_kept, hooks.closes_returned = not hooks.closes_returned, not keeps
    if was_kept and not keeps and isinstance(engine.pool, QueuePool) and engine.pool.checkedin():
        with suppress(TorchyardError), transaction(engine):
            pass  # The pool closes the connection at the end of this transaction.


def close_engine(engine: Engine) -> None:
    """Closes all connections. A connection in use by another thread is closed when it is returned to the pool."""
    hooks_of(engine).closes_returned = True
    engine.dispose()


def connect_with_password(url: URL, args: Any, settings: dict[str, Any]) -> Any:
    """Connects with libpq's own mechanisms (PGPASSWORD, ~/.pgpass, a certificate).

    If the server then still requires a valid password, the one in the keyring is used.
    """
    import psycopg

    try:
        return psycopg.connect(*args, **settings)
    except psycopg.OperationalError as error:
        wants_password = "password" in str(error).lower()
        password = _kept_password(url) if wants_password else None
        if password is None:
            raise
        return psycopg.connect(*args, **{**settings, "password": password})


def _sqlite(url: URL) -> Engine:
    path = Path(str(url.database)).expanduser()
    engine = create_engine(url.set(database=str(path)), connect_args={"timeout": BUSY_S, "check_same_thread": False})

    @event.listens_for(engine, "connect")
    def connected(connection: sqlite3.Connection, record: Any) -> None:
        connection.isolation_level = None  # The driver must not issue BEGIN, since `transaction` issues it.
        connection.execute("PRAGMA journal_mode = WAL")
        # In WAL mode with this setting, no booking is lost if the program is killed. A power failure may lose the last
        # bookings, but does not damage the file.
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA foreign_keys = ON")

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        writes = connection.get_execution_options().get(_WRITES)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
        if writes and (person := connection.get_execution_options().get(_ACTS)):
            step = secrets.randbits(62)
            desktop = _recorded_as.get() or platform.node()
            connection.exec_driver_sql("INSERT INTO acting VALUES (?, ?, ?)", (step, person, desktop))

    @event.listens_for(engine, "commit")
    def commit(connection: Connection) -> None:
        if connection.get_execution_options().get(_WRITES) and connection.get_execution_options().get(_ACTS):
            connection.exec_driver_sql("DELETE FROM acting")

    return engine


def act_as(engine: Engine, person: str) -> None:
    """Sets the user who is recorded in the history of a file's bookings.

    In PostgreSQL, the role is recorded instead.
    """
    engine.update_execution_options(**{_ACTS: person})


@contextmanager
def transaction(engine: Engine, *, writes: bool = False) -> Iterator[Connection]:
    """Runs a transaction, which is committed at the end and rolled back after an error.

    Errors of the database are raised as Overlap, Refused, StoreUnavailable, StoreUnreadable, PermissionDenied or BadUrl
    where one of these applies. Other errors of the database are unchanged.
    """
    try:
        with engine.connect() as connection:
            if writes:
                connection = connection.execution_options(**{_WRITES: True})
            with connection.begin():
                if writes and (desktop := _recorded_as.get()) and engine.dialect.name == "postgresql":
                    setting = text("SELECT set_config('application_name', :name, true)")
                    connection.execute(setting, {"name": f"torchyard {desktop}"[:63]})
                yield connection
    except exc.DBAPIError as error:
        raise _translated(error, engine.url) from error
    except exc.TimeoutError as error:
        raise StoreUnavailable(
            f"{place_of(engine.url)} is busy: no connection became free", hint="Try again."
        ) from error


def _translated(error: exc.DBAPIError, url: URL) -> Exception:
    message = str(error.orig).strip()
    first = message.splitlines()[0] if message else type(error.orig).__name__
    place = place_of(url)
    if "torchyard: overlap" in message:
        return Overlap()
    if url.get_backend_name() == "sqlite":
        return _translated_sqlite(error, first, place)
    code = str(getattr(error.orig, "sqlstate", None) or "")
    if code in ("23P01", "40P01", "40001"):
        return Overlap()
    if "torchyard: the past" in message:
        return Refused("that would change the past, which stays as it was", code="past", hint="Book anew from now on.")
    if rule := _rule(error.orig):
        why = first.removeprefix("torchyard: ")
        return Refused(why, code=rule, hint=ShowRules())
    if code == "23514":
        return Refused(f"{place} refuses a value: {first}", code="bad_value", hint="Change it, and try again.")
    if missing := _missing(message, url):
        return missing
    if code == "42501":
        message = f"your role `{url.username}` may not do that in {place}: {first}"
        return PermissionDenied(message, hint=SetUpTeam(("--member", str(url.username))))
    if code.startswith("28") or "authentication failed" in message or "no password supplied" in message:
        hint = f"Keep the password in the keyring (`keyring set {keyring_name(url)}`) or in ~/.pgpass."
        return DatabaseLoginRefused(f"{place} refused the login of {url.username}: {_last_line(message)}", hint=hint)
    if code == "53300" or any(words in message for words in _FULL):
        return StoreUnavailable(
            f"{place} has no connection left: the server's connection limit is reached",
            hint="Close calendars that are not needed, and try again; an admin of the server raises max_connections.",
        )
    if isinstance(error, exc.OperationalError | exc.InterfaceError) or error.connection_invalidated:
        return StoreUnavailable(f"{place} does not answer: {_last_line(message)}", hint="It is retried automatically.")
    if isinstance(error, exc.DataError):
        return StoreUnreadable(place, first)
    return error


def _rule(error: BaseException | None) -> str:
    """Returns the code of the rule that caused a refusal by the database, or an empty string for other errors."""
    named = str(getattr(getattr(error, "diag", None), "constraint_name", None) or "")
    return named if named in _RULES else ""


def _missing(message: str, url: URL) -> BadUrl | None:
    """Returns the error for a database or role that does not exist, or None for other errors.

    libpq's message identifies such an error. Unlike the error of an unavailable server, it persists when the call is
    repeated.
    """
    if f'database "{url.database}" does not exist' in message:
        return BadUrl(
            f"there is no database `{url.database}` on {url.host or url.query.get('host') or 'this computer'}",
            hint=("Correct `bookings_url`, or create the database (`createdb`) and the calendar in it.", SetUpTeam()),
        )
    if f'role "{url.username}" does not exist' in message:
        hint = (
            "Correct `bookings_url`, or ask an admin of the team to add you.",
            SetUpTeam(("--member", str(url.username))),
        )
        return BadUrl(f"there is no role `{url.username}` in {place_of(url)}", hint=hint)
    return None


def _last_line(message: str) -> str:
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    return (lines[-1] if lines else "the connection was lost").removeprefix("FATAL:").strip().rstrip(".")


def _translated_sqlite(error: exc.DBAPIError, first: str, place: str) -> Exception:
    if "locked" in first:
        return StoreUnavailable(f"{place} is busy: another program writes to it", hint="Try again.")
    if "readonly" in first or "read-only" in first:
        return PermissionDenied(f"{place} cannot be written", hint="Check the permissions of the file and its folder.")
    if "not a database" in first or "malformed" in first:
        return BadUrl(f"{place} is not a bookings file, or a damaged one: {first}", hint="Name another file.")
    if isinstance(error, exc.OperationalError):
        return StoreUnavailable(f"{place} cannot be used: {first}", hint="Check that its folder is there and has room.")
    return error


def has_calendar(connection: Connection) -> str | None:
    """Returns the revision of the schema, or None if there is no calendar."""
    if connection.dialect.name == "sqlite":
        there = connection.execute(text("SELECT 1 FROM sqlite_master WHERE name = 'alembic_version'")).first()
    else:
        there = connection.execute(text("SELECT to_regclass('torchyard.alembic_version')")).scalar()
    if not there:
        return None
    version: str | None = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
    return version


def upgrade(connection: Connection) -> None:
    """Upgrades the schema to HEAD in the transaction of `connection`."""
    # Importing Alembic takes 0.2 s and is necessary only for an upgrade.
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", "torchyard_core.booking.store:migrations")
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def keep_password(url: URL, password: str) -> None:
    """Stores a role's password in the keyring. An empty password removes the entry.

    Raises TorchyardError if there is no keyring that can store the password.
    """
    import keyring
    from keyring.errors import KeyringError, PasswordDeleteError

    try:
        if password:
            keyring.set_password(_KEYRING_SERVICE, _keyring_entry(url), password)
        else:
            keyring.delete_password(_KEYRING_SERVICE, _keyring_entry(url))
    except PasswordDeleteError:
        return  # The keyring has no such entry, or cannot remove it.
    except KeyringError:
        if not password:
            return
        line = f"{url.host or 'localhost'}:{url.port or 5432}:{url.database}:{url.username}:PASSWORD"
        raise TorchyardError(
            "this computer has no keyring that could keep the password",
            code="no_keyring",
            hint=f"Add the line `{line}` to ~/.pgpass, allow only yourself to read that file (chmod 600), and join "
            "without a password here.",
        ) from None


def keyring_name(url: URL) -> str:
    """Returns the arguments of `keyring set`: the name of the service, and `ROLE@HOST:PORT/DATABASE` as the user."""
    return f"{_KEYRING_SERVICE} {_keyring_entry(url)}"


def _kept_password(url: URL) -> str | None:
    """Returns the password in the keyring, or None if there is no entry or no keyring."""
    import keyring
    from keyring.errors import KeyringError

    try:
        return keyring.get_password(_KEYRING_SERVICE, _keyring_entry(url))
    except KeyringError:
        return None


def _keyring_entry(url: URL) -> str:
    host = url.host or url.query.get("host") or "localhost"
    return f"{url.username}@{host}:{url.port or 5432}/{url.database}"

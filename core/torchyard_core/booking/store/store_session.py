"""The database connection of a store, with its user, clock and locks."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, Engine, Table, text
from sqlalchemy.dialects import postgresql, sqlite

import torchyard_core.booking.store.tables as tables
from torchyard_core.booking.model import whole_seconds
from torchyard_core.booking.store.database_engine import place_of, transaction

_log = logging.getLogger(__name__)
Clock = Callable[[], datetime]


def system_clock() -> datetime:
    return datetime.now(UTC)


class StoreSession:
    """The engine, the user and the clock that the classes of a store share."""

    def __init__(self, engine: Engine, person: str, is_admin: bool, clock: Clock, *, own_time: bool):
        self.engine = engine
        self.clock = clock
        self._own_time = own_time or engine.dialect.name == "sqlite"
        self.person = person
        """The user: the role in a team's database, or the name in the settings for a private file."""
        self.is_admin = is_admin
        """Whether the user may change all bookings and the rules. Always true for a private file."""
        self.unreadable: set[str] = set()
        """Descriptions of rows that were skipped because of invalid values. A command lists them when it ends."""

    @property
    def is_private(self) -> bool:
        """Whether the database is a file on this computer, which no other user can see."""
        return self.engine.dialect.name == "sqlite"

    @property
    def place(self) -> str:
        """The name of the database for messages."""
        return place_of(self.engine.url)

    def transaction(self, *, writes: bool = False) -> AbstractContextManager[Connection]:
        """Starts a transaction; see `database_engine.transaction`."""
        return transaction(self.engine, writes=writes)

    def now(self, connection: Connection) -> datetime:
        """Returns the current time in whole seconds.

        The time is that of the team's database. For a private file, or with `own_time`, it is that of `clock`.
        """
        if self._own_time:
            return whole_seconds(self.clock())
        found: datetime = connection.execute(text("SELECT clock_timestamp()")).scalar_one()
        return whole_seconds(found)

    def lock(self, connection: Connection, *names: str) -> None:
        """Acquires advisory locks, which are held until the end of the transaction.

        The locks are acquired in a fixed order, which prevents deadlocks. SQLite needs no such locks, since it has only
        one write transaction at a time.
        """
        if not self.is_private:
            digests = (hashlib.blake2b(name.encode(), digest_size=8).digest() for name in names)
            keys = sorted({int.from_bytes(digest, "big", signed=True) for digest in digests})
            connection.execute(
                text("SELECT pg_advisory_xact_lock(key) FROM unnest(CAST(:keys AS bigint[])) AS key"), {"keys": keys}
            )

    def skip(self, what: str) -> None:
        _log.info("skipped unreadable row: %s", what)
        self.unreadable.add(what)

    def readable(self, rows: Iterable[Any], what: Callable[[Any], str]) -> list[Any]:
        """Returns the rows whose times are valid. For any other row, `what(row)` is added to `unreadable`."""
        found = []
        for row in rows:
            if any(value is tables.JUNK for value in row):
                self.skip(what(row))
            else:
                found.append(row)
        return found


def upsert(
    connection: Connection,
    table: Table,
    rows: Sequence[Mapping[str, Any]],
    renewed: Sequence[str],
    *,
    newest: str | None = None,
) -> None:
    """Inserts rows, or updates the `renewed` columns of rows whose keys already exist.

    If `renewed` is empty, existing rows are not changed. If `newest` names a column, a row is not updated if the value
    of that column would decrease.
    """
    make = sqlite.insert if connection.dialect.name == "sqlite" else postgresql.insert
    statement: Any = make(table)
    columns = {name: statement.excluded[name] for name in renewed}
    keys = list(table.primary_key.columns)
    if columns:
        where = statement.excluded[newest] >= table.c[newest] if newest else None
        statement = statement.on_conflict_do_update(index_elements=keys, set_=columns, where=where)
    else:
        statement = statement.on_conflict_do_nothing(index_elements=keys)
    connection.execute(statement, list(rows))

"""Copy of the calendar in an SQLite file on this computer, for times when the database is unavailable.

The copy covers a period around the current time and follows the database's change log. Each call extends the copy by a
limited number of bookings, so that commands do not wait long. Processes share the file: each process reads the
file, queries the database, and writes in one short transaction unless another process has written in the meantime. A
damaged file is removed and created again.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from torchyard_core.booking.intervals import Interval
from torchyard_core.booking.model import Booking, Changes, Position, Slot

if TYPE_CHECKING:
    from torchyard_core.booking.store import BookingStore

KEPT_BEFORE = timedelta(days=14)
KEPT_AFTER = timedelta(days=60)
AT_A_TIME, MANY = 200, 5000
"""Approximate number of bookings that one call reads: AT_A_TIME to extend the copy by one step, MANY to complete it."""
_FIRST_STEP, _SPARSE = timedelta(hours=6), 100
_VERSION = 1
_BUSY_S = 1.0
_PRIVATE = 0o600
_DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR, sqlite3.SQLITE_FORMAT}
_SCHEMA = f"""
    BEGIN IMMEDIATE;
    CREATE TABLE IF NOT EXISTS state (
        one INTEGER PRIMARY KEY CHECK (one = 1), revision INTEGER NOT NULL, url TEXT NOT NULL, seq INTEGER NOT NULL,
        token TEXT NOT NULL, since INTEGER NOT NULL, until INTEGER NOT NULL, as_of INTEGER NOT NULL
    );
    CREATE TABLE IF NOT EXISTS slots (one INTEGER PRIMARY KEY CHECK (one = 1), body TEXT NOT NULL);
    CREATE TABLE IF NOT EXISTS bookings (
        id TEXT PRIMARY KEY, starts INTEGER NOT NULL, ends INTEGER NOT NULL, body TEXT NOT NULL
    );
    CREATE INDEX IF NOT EXISTS bookings_by_start ON bookings (starts);
    CREATE INDEX IF NOT EXISTS bookings_by_end ON bookings (ends);
    PRAGMA user_version = {_VERSION};
    COMMIT;
"""
Result = TypeVar("Result")


@dataclass(frozen=True)
class Kept:
    """The bookings of a period from the copy.

    `known` is the whole period that the file covers, and `as_of` is the time of the last update.
    """

    bookings: tuple[Booking, ...]
    slots: tuple[Slot, ...]
    as_of: datetime
    known: Interval


@dataclass(frozen=True)
class _State:
    """The state of the copy. Each write increments `revision`."""

    revision: int
    position: Position
    known: Interval
    as_of: datetime


class LocalCopy:
    """The copy of a calendar in a file, which may not exist. Each method opens and closes the file."""

    def __init__(self, file: Path, url: str):
        self._file = file
        self._url = url

    def read(self, since: datetime, until: datetime) -> Kept | None:
        """Returns the copy of the period, or None if there is no readable copy of this calendar."""

        def look(connection: sqlite3.Connection) -> Kept | None:
            connection.execute("BEGIN")  # The transaction ensures that all three reads see the same state of the file.
            if (state := self._state(connection)) is None:
                return None
            chosen = "SELECT body FROM bookings WHERE starts < ? AND ends > ? ORDER BY starts, id"
            rows = connection.execute(chosen, (_seconds(until), _seconds(since)))
            bookings = tuple(Booking.from_json(json.loads(body)) for (body,) in rows)
            (body,) = connection.execute("SELECT body FROM slots").fetchone()
            return Kept(bookings, tuple(Slot(**slot) for slot in json.loads(body)), state.as_of, state.known)

        return self._with(look) if self._file.exists() else None

    def follow(
        self,
        store: BookingStore,
        now: datetime,
        slots: Iterable[Slot],
        at_a_time: int = AT_A_TIME,
        just_read: tuple[Position, Changes] | None = None,
    ) -> bool:
        """Applies changes of the store to the copy, and extends the period that it covers. Raises errors of the store.

        Args:
            at_a_time: The number of bookings after which no further period is read.
            just_read: Changes that the caller has already read, with the position in the change log before them.

        Returns:
            False if a further call is useful: the copy is incomplete, or another process has written to the copy in the
                meantime.
        """
        state = self._with(self._state)
        hour = now.replace(minute=0, second=0, microsecond=0)
        wanted = Interval(hour - KEPT_BEFORE, hour + timedelta(hours=1) + KEPT_AFTER)
        changes = None
        if state is not None and state.known.start <= now < state.known.end:
            if just_read is not None and just_read[0] == state.position:
                changes = just_read[1]
            else:
                changes = store.changes(state.position)
        if state is None or changes is None:
            position, known = store.position(), Interval(now, min(now + _FIRST_STEP, wanted.end))
            puts, gone, is_new = {one.id: one for one in store.bookings(known.start, known.end)}, set[str](), True
        else:
            position, known = changes.position, Interval(max(state.known.start, wanted.start), state.known.end)
            puts, gone, is_new = {one.id: one for one in changes.bookings}, set(changes.gone), False
        read, step = len(puts) if is_new else 0, _FIRST_STEP
        while read < at_a_time and (more := _missing(known, wanted, step)) is not None:
            found = store.bookings(more.start, more.end)
            puts |= {one.id: one for one in found}
            known = Interval(min(known.start, more.start), max(known.end, more.end))
            read += len(found)
            step *= 2 if len(found) < _SPARSE else 1
        gone |= {one.id for one in puts.values() if one.start >= known.end or one.end <= known.start}
        after = _State(state.revision + 1 if state else 1, position, known, now)
        kept = [one for one in puts.values() if one.id not in gone]
        body = json.dumps([slot.__dict__ for slot in slots])
        is_written = self._with(lambda connection: self._write(connection, state, after, kept, gone, body, is_new))
        return is_written is None or (is_written and _missing(known, wanted, step) is None)

    def _write(
        self,
        connection: sqlite3.Connection,
        before: _State | None,
        after: _State,
        kept: Iterable[Booking],
        gone: Iterable[str],
        slots: str,
        is_new: bool,
    ) -> bool:
        """Writes in one transaction. Returns False without writing if another process has written since `before`."""
        connection.execute("BEGIN IMMEDIATE")
        if self._state(connection) != before:
            connection.execute("ROLLBACK")
            return False
        if is_new:
            connection.execute("DELETE FROM bookings")
        connection.executemany("DELETE FROM bookings WHERE id = ?", [(one,) for one in gone])
        connection.execute("DELETE FROM bookings WHERE ends <= ?", (_seconds(after.known.start),))
        connection.executemany(
            "INSERT OR REPLACE INTO bookings VALUES (?, ?, ?, ?)",
            [(one.id, _seconds(one.start), _seconds(one.end), json.dumps(one.to_json())) for one in kept],
        )
        renewed = "INSERT INTO slots VALUES (1, ?1) ON CONFLICT (one) DO UPDATE SET body = ?1 WHERE body <> ?1"
        connection.execute(renewed, (slots,))
        connection.execute(
            "INSERT OR REPLACE INTO state VALUES (1, ?, ?, ?, ?, ?, ?, ?)",
            (
                after.revision,
                self._url,
                after.position.seq,
                after.position.token,
                _seconds(after.known.start),
                _seconds(after.known.end),
                _seconds(after.as_of),
            ),
        )
        connection.execute("COMMIT")
        return True

    def _state(self, connection: sqlite3.Connection) -> _State | None:
        found = connection.execute("SELECT revision, url, seq, token, since, until, as_of FROM state").fetchone()
        if found is None or found[1] != self._url:
            return None
        revision, _, seq, token, since, until, as_of = found
        return _State(revision, Position(seq, token), Interval(_moment(since), _moment(until)), _moment(as_of))

    def _with(self, work: Callable[[sqlite3.Connection], Result]) -> Result | None:
        """Runs `work` on the open file. Returns its result, or None if the file is busy, not writable or damaged.

        A damaged file is removed. The next call creates it again.
        """
        try:
            with self._connected() as connection:
                return work(connection)
        except sqlite3.Error as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF not in _DAMAGED:
                return None
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            pass  # The SQLite file does not have the expected content.
        except OSError:
            return None
        self._remove()
        return None

    @contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(self._file, os.O_RDWR | os.O_CREAT, _PRIVATE))
        connection = sqlite3.connect(self._file, timeout=_BUSY_S, isolation_level=None)
        try:
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            if version not in (0, _VERSION):
                raise ValueError("a copy made by another Torchyard")
            connection.execute("PRAGMA synchronous = NORMAL")
            if version == 0:
                connection.executescript(_SCHEMA)
            yield connection
        finally:
            connection.close()

    def _remove(self) -> None:
        for name in (f"{self._file.name}-journal", self._file.name):
            with suppress(OSError):
                self._file.with_name(name).unlink()


def _missing(known: Interval, wanted: Interval, step: timedelta) -> Interval | None:
    """Returns the next period to read, or None if `known` covers `wanted`. The future is read before the past."""
    if known.end < wanted.end:
        return Interval(known.end, min(known.end + step, wanted.end))
    if known.start > wanted.start:
        return Interval(max(known.start - step, wanted.start), known.start)
    return None


def _seconds(moment: datetime) -> int:
    return int(moment.timestamp())


def _moment(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)

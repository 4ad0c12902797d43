"""Changes made by other clients: notifications for an open calendar, and the log of changed bookings.

PostgreSQL: LISTEN runs on the connection that queries use, because a server allows few connections and each open window
needs at least one. Notifications before LISTEN are lost, so a new connection is treated as a change of all data.

SQLite: `PRAGMA data_version`, which changes when another connection commits, is polled once a second.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import threading
from collections.abc import Callable
from typing import Any

from sqlalchemy import Connection, Engine, QueuePool
from sqlalchemy import select as sql_select

import torchyard_core.booking.store.tables as tables
from torchyard_core.booking.model import Position
from torchyard_core.booking.store.database_engine import hooks_of

EVERY_S = 1.0
RETRY_S = (1.0, 2.0, 5.0, 15.0)
EVERYTHING = "all"
READ_BY_QUERIES_S = 0.05
"""Time in seconds that a running query has to read notifications before the watch reads them itself."""
_log = logging.getLogger(__name__)


class Watch:
    """A thread that waits for changes to a database."""

    def __init__(self, engine: Engine, on_change: Callable[[str], None]):
        self._engine = engine
        self._on_change = on_change
        self._closed = threading.Event()
        self._changes: set[str] = set()
        self._new_sockets: list[int] = []
        self.is_watching = threading.Event()
        """Set while the database is watched."""
        wait = self._poll if engine.dialect.name == "sqlite" else self._listen
        self._thread = threading.Thread(target=self._run, args=(wait,), name="bookings-watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stops the thread, and waits until it has ended unless called on that thread.

        After the wait, `on_change` is no longer called.
        """
        self._closed.set()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self, wait: Callable[[], None]) -> None:
        failures = 0
        while not self._closed.is_set():
            try:
                wait()
            except Exception as error:  # The thread tries again, since the database may be unavailable for hours.
                _log.info("the bookings are not watched: %s", error)
            if self.is_watching.is_set():
                failures = 0
                self.is_watching.clear()
            self._closed.wait(RETRY_S[min(failures, len(RETRY_S) - 1)])
            failures += 1

    def _started(self) -> None:
        self.is_watching.set()
        self._on_change(EVERYTHING)

    def _poll(self) -> None:
        connection = self._engine.raw_connection()
        try:
            cursor = connection.cursor()
            counter = cursor.execute("PRAGMA data_version").fetchone()
            self._started()
            while not self._closed.wait(EVERY_S):
                last, counter = counter, cursor.execute("PRAGMA data_version").fetchone()
                if counter != last:
                    self._on_change(EVERYTHING)
        finally:
            connection.close()

    def _listen(self) -> None:
        hooks_of(self._engine).add(self._on_checkout)
        socket = None
        try:
            while not self._closed.is_set():
                with self._engine.connect():  # The pool's test of the connection reads pending notifications.
                    pass
                while self._new_sockets:
                    if socket is not None:
                        os.close(socket)
                    socket = self._new_sockets.pop()
                while self._changes:
                    self._on_change(self._changes.pop())
                self._wait(socket)
        finally:
            hooks_of(self._engine).remove(self._on_checkout)
            for one in (*self._new_sockets, *([] if socket is None else [socket])):
                os.close(one)
            self._new_sockets.clear()
            self._stop_listening()

    def _wait(self, socket: int | None) -> None:
        """Waits for a change, for unread data from the server, or for the end of the watch."""
        poll = select.poll()
        if socket is not None:
            poll.register(socket, select.POLLIN)
        while not (self._closed.is_set() or self._changes or self._new_sockets):
            if poll.poll(EVERY_S / 4 * 1000) and not self._closed.wait(READ_BY_QUERIES_S) and poll.poll(0):
                return

    def _on_checkout(self, connection: Any, record: Any) -> None:
        """Issues LISTEN on a new connection. Called on the thread that obtains the connection from the pool."""
        if self not in record.info:
            connection.add_notify_handler(self._on_notice)
            connection.execute("LISTEN torchyard_bookings")
            connection.commit()
            record.info[self] = True
            self._new_sockets.append(os.dup(connection.fileno()))
            self._changes.add(EVERYTHING)
            self.is_watching.set()

    def _on_notice(self, notice: Any) -> None:
        self._changes.add(notice.payload)

    def _stop_listening(self) -> None:
        """Closes the connection if it is idle, which ends LISTEN."""
        pool = self._engine.pool
        if isinstance(pool, QueuePool) and pool.checkedin():
            # An error is ignored, since the database may be unavailable.
            with contextlib.suppress(Exception), self._engine.connect() as connection:
                connection.invalidate()


MOST_BOOKINGS = 2000
"""Maximum number of changed bookings that are returned. After more changes, a reader reads all bookings again."""
_MOST_ENTRIES = 20_000


def position(connection: Connection) -> Position:
    """Returns the last position in the change log. Bookings that are read afterwards are at least as new."""
    of = tables.booking_changes
    return Position(*connection.execute(sql_select(of.c.seq, of.c.token).order_by(of.c.seq.desc()).limit(1)).one())


def changed_since(connection: Connection, since: Position) -> tuple[Position, frozenset[str]] | None:
    """Returns the last position in the change log, and the IDs of the bookings that changed after `since`.

    Returns None if the log does not contain `since` (because of a restored backup or another database), or if too many
    bookings changed.
    """
    of = tables.booking_changes
    chosen = sql_select(of.c.seq, of.c.token, of.c.booking_id).where(of.c.seq >= since.seq).order_by(of.c.seq)
    rows = connection.execute(chosen.limit(_MOST_ENTRIES)).all()
    if not rows or Position(rows[0].seq, rows[0].token) != since or len(rows) == _MOST_ENTRIES:
        return None
    changed = frozenset(row.booking_id for row in rows[1:])
    return (Position(rows[-1].seq, rows[-1].token), changed) if len(changed) <= MOST_BOOKINGS else None

"""Tells an open calendar when somebody else has changed something.

PostgreSQL notifies, and replays nothing from before it was listened to: each connection, the first one too, counts as
a change of everything, for whoever watches has looked before.
SQLite has a counter that another connection's commit raises: it is looked at once a second.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from sqlalchemy import Engine

from torchyard_core.booking.refusals import StoreAway
from torchyard_core.booking.store.engine import SOON_NOTICED, connect_with_password

EVERY_S = 1.0
RETRY_S = (1.0, 2.0, 5.0, 15.0)
EVERYTHING = "all"
_log = logging.getLogger(__name__)


class Watch:
    """A thread that watches one database. `close` ends it."""

    def __init__(self, engine: Engine, on_change: Callable[[str], None]):
        self._engine = engine
        self._on_change = on_change
        self._closed = threading.Event()
        self.is_watching = threading.Event()
        """Set while changes are heard of."""
        look = self._poll if engine.dialect.name == "sqlite" else self._listen
        self._thread = threading.Thread(target=self._run, args=(look,), name="bookings-watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the thread; afterwards `on_change` is not called any more."""
        self._closed.set()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self, look: Callable[[], None]) -> None:
        failures = 0
        while not self._closed.is_set():
            try:
                look()
            except Exception as error:  # the database may be away for a night: tell nobody, try again
                _log.info("the bookings are not watched: %s", error)
            if self.is_watching.is_set():
                failures = 0
                self.is_watching.clear()
            self._closed.wait(RETRY_S[min(failures, len(RETRY_S) - 1)])
            failures += 1

    def _watching(self) -> None:
        self.is_watching.set()
        self._on_change(EVERYTHING)

    def _poll(self) -> None:
        connection = self._engine.raw_connection()
        try:
            cursor = connection.cursor()
            counter = cursor.execute("PRAGMA data_version").fetchone()
            self._watching()
            while not self._closed.wait(EVERY_S):
                last, counter = counter, cursor.execute("PRAGMA data_version").fetchone()
                if counter != last:
                    self._on_change(EVERYTHING)
        finally:
            connection.close()

    def _listen(self) -> None:
        import psycopg

        args, settings = self._engine.dialect.create_connect_args(self._engine.url)
        settings = {**settings, "connect_timeout": 5, "autocommit": True, "application_name": "torchyard-watch"}
        settings |= SOON_NOTICED
        connection = connect_with_password(self._engine.url, args, settings)
        if not isinstance(connection, psycopg.Connection):
            raise StoreAway("the driver is not psycopg")
        with connection:
            connection.execute("LISTEN torchyard_bookings")
            self._watching()
            while not self._closed.is_set():
                told = {notice.payload for notice in connection.notifies(timeout=EVERY_S / 4)}
                for what in sorted(told):
                    self._on_change(what)


def watch(engine: Engine, on_change: Callable[[str], None]) -> Watch:
    """Starts watching."""
    return Watch(engine, on_change)

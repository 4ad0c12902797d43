"""What a window does for the calendar while it is open: agents are handed what is booked and tell what they saw, and
bookings end with the runs that they were made for. On a thread of its own, which nothing waits for."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from torchyard_core.background_thread import in_background
from torchyard_core.errors import TorchyardError
from torchyard_core.home import Home
from torchyard_core.launch.runs.history import History
from torchyard_gui.bridge.bookings_model import BookingsModel
from torchyard_gui.bridge.fleet_model import FleetModel

if TYPE_CHECKING:
    from torchyard_core.booking.sync.agent_exchange import AgentExchange, Exchanged

log = logging.getLogger(__name__)


class CalendarExchange:
    """From `start` to `close`. Used on the GUI thread."""

    def __init__(self, home: Home, fleet: FleetModel, bookings: BookingsModel):
        self._home = home
        self._fleet = fleet
        self._bookings = bookings
        self._exchange: AgentExchange | None = None
        self._lock = threading.Lock()
        self._closed = False

    def start(self) -> None:
        """Begins, on a thread: the database's and SSH's libraries take half a second to import."""
        in_background(self._begin)

    def changed(self) -> None:
        """Bookings have changed, or a run has ended: hosts and calendar are to know soon."""
        with self._lock:
            if self._exchange is not None:
                self._exchange.changed()

    def close(self) -> None:
        """Ends; what is under way with hosts is left to its thread."""
        with self._lock:
            self._closed = True
            exchange, self._exchange = self._exchange, None
        if exchange is not None:
            in_background(exchange.close)

    # On threads

    def _begin(self) -> None:
        from torchyard_core.booking.sync.agent_exchange import AgentExchange

        with self._lock:
            if not self._closed:
                store = self._bookings.store
                self._exchange = AgentExchange(self._fleet.fleet, store, self._exchanged, self._trouble)

    def _exchanged(self, done: Exchanged) -> None:
        from torchyard_core.booking.run_end import end_bookings
        from torchyard_core.fleet.calendar_push import open_links
        from torchyard_core.user_settings import read_user_settings

        keep = read_user_settings(self._home.settings_file).keeps_after_failure
        end_bookings(self._bookings.store(), History(self._home.history), open_links(self._fleet.fleet), keep)

    def _trouble(self, error: TorchyardError) -> None:
        # The page says by itself that its database is away; here it is tried again.
        log.info("the calendar was not exchanged with hosts: %s", error.sentence())

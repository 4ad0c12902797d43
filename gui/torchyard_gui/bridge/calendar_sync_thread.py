"""Periodic synchronisation of the calendar with the hosts while the window is open."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from torchyard_core.background_thread import in_background
from torchyard_core.errors import TorchyardError
from torchyard_core.home import Home
from torchyard_gui.bridge.bookings_model import BookingsModel
from torchyard_gui.bridge.fleet_model import FleetModel

if TYPE_CHECKING:
    from torchyard_core.app.sync_calendar import PeriodicSync

log = logging.getLogger(__name__)


class CalendarSyncThread:
    """Synchronises the calendar on a background thread, from `start` to `close`. Public methods are called on the GUI
    thread.
    """

    def __init__(self, home: Home, fleet: FleetModel, bookings: BookingsModel):
        self._home = home
        self._fleet = fleet
        self._bookings = bookings
        self._sync: PeriodicSync | None = None
        self._lock = threading.Lock()
        self._closed = False

    def start(self) -> None:
        """Starts synchronising on a background thread, which also imports the database and SSH libraries, because this
        is slow.
        """
        in_background(self._begin)

    def changed(self) -> None:
        """Requests a synchronisation soon. Called when bookings have changed or a run has ended."""
        with self._lock:
            if self._sync is not None:
                self._sync.changed()

    def close(self) -> None:
        """Stops synchronising, without waiting for hosts that have not answered yet."""
        with self._lock:
            self._closed = True
            sync, self._sync = self._sync, None
        if sync is not None:
            in_background(sync.close)

    def _begin(self) -> None:
        from torchyard_core.app.sync_calendar import PeriodicSync, SyncCalendar

        sync = SyncCalendar(self._home, self._fleet.fleet)
        with self._lock:
            if not self._closed:
                store = self._bookings.store
                self._sync = PeriodicSync(self._fleet.fleet, lambda: sync.run(store()), _log_error)


def _log_error(error: TorchyardError) -> None:
    # The Bookings page already shows that the database is unreachable, and PeriodicSync will try again.
    log.info("the calendar was not synchronised with the hosts: %s", error.sentence())

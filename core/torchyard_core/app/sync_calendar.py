"""The use case "synchronise the calendar": exchanges data about bookings with hosts, once or periodically.

Every desktop that is connected to hosts synchronises the calendar: it adds the hosts' GPUs, ends the bookings of ended
runs, exchanges usage and bookings with the agents, releases idle bookings and processes the waitlist.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from torchyard_core.booking.model import Booking
from torchyard_core.booking.run_end import end_bookings
from torchyard_core.booking.slots import slots_of
from torchyard_core.booking.store import BookingStore
from torchyard_core.booking.sync.agent_sync import AgentSync, sync_agents
from torchyard_core.errors import TorchyardError
from torchyard_core.fleet.calendar_push import open_links
from torchyard_core.fleet.daemon_client import DaemonClient
from torchyard_core.fleet.fleet import Fleet
from torchyard_core.home import Home
from torchyard_core.launch.runs.history import History
from torchyard_core.user_settings import read_user_settings

INTERVAL_S = 600.0
RETRY_S = 30.0
POLL_S = 2.0
"""Maximum interval in seconds between two checks for newly connected hosts."""


@dataclass(frozen=True)
class CalendarSync(AgentSync):
    """The result of one synchronisation."""

    run_ended: tuple[Booking, ...]
    """The user's bookings that were released or shortened because their run has ended."""
    soon_idle: tuple[tuple[Booking, datetime], ...]
    """The user's bookings that will soon be released because their GPUs are idle, each with its release time."""


class SyncCalendar:
    """Synchronises the calendar with the connected hosts. Opens no connections."""

    def __init__(self, home: Home, fleet: Fleet):
        self._home = home
        self._fleet = fleet

    def run(self, store: BookingStore) -> CalendarSync:
        """Synchronises once. Raises errors of the store, and FileProblem or UsageError for invalid user settings."""
        keep = read_user_settings(self._home.settings_file).keeps_after_failure
        store.remember_slots(slots_of(self._fleet.known(), is_private=store.is_private))
        run_ended = end_bookings(store, History(self._home.history), open_links(self._fleet), keep)
        done = sync_agents(self._fleet, store)
        return CalendarSync(**done.__dict__, run_ended=run_ended, soon_idle=store.soon_idle())


class PeriodicSync:
    """Synchronises on a daemon thread while hosts are connected.

    It synchronises every ten minutes, when a host connects, after a call to `changed`, and 30 s after a failure.
    """

    def __init__(
        self,
        fleet: Fleet,
        sync: Callable[[], CalendarSync],
        on_error: Callable[[TorchyardError], None] = lambda error: None,
    ):
        """Starts the thread.

        Args:
            fleet: The fleet. A new connection to one of its hosts triggers a synchronisation.
            sync: The function that synchronises. It is retried if it raises TorchyardError.
            on_error: Called with each such TorchyardError, on the thread that synchronises.
        """
        self._fleet = fleet
        self._sync = sync
        self._on_error = on_error
        self._wake = threading.Event()
        self._closed = False
        self._changed = True
        self._thread = threading.Thread(target=self._run, name="calendar-sync", daemon=True)
        self._thread.start()

    def changed(self) -> None:
        """Requests an early synchronisation after a change to bookings or the end of a run."""
        self._changed = True
        self._wake.set()

    def close(self) -> None:
        """Ends the thread. Waits up to 5 s for a synchronisation in progress."""
        self._closed = True
        self._wake.set()
        self._thread.join(5)

    def _run(self) -> None:
        known: dict[str, DaemonClient] = {}
        due = time.monotonic()
        while not self._closed:
            links = open_links(self._fleet)
            is_new = any(known.get(name) is not link for name, link in links.items())
            if links and (self._changed or is_new or time.monotonic() >= due):
                self._changed = False
                due = time.monotonic() + (INTERVAL_S if self._sync_once() else RETRY_S)
                known = links
            self._wake.wait(POLL_S)
            self._wake.clear()

    def _sync_once(self) -> bool:
        """Synchronises once, and returns whether all hosts accepted the calendar."""
        try:
            return not self._sync().problems
        except TorchyardError as error:
            self._on_error(error)
            return False

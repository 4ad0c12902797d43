"""The window's model of the calendar: the last loaded state, and commands that change the calendar.

Background jobs (`bridge/background_jobs`) access the database and import its libraries. Public methods are called on
the GUI thread unless stated otherwise.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from PySide6.QtCore import QObject, QTimer, Signal

from torchyard_core.background_thread import in_background
from torchyard_core.booking.intervals import Interval
from torchyard_core.booking.model import Booking, IdleEvidence, Slot, Use
from torchyard_core.booking.rules.team_rules import Rules
from torchyard_core.booking.time_parser import local_zone
from torchyard_core.booking.waitlist import Waiting
from torchyard_core.errors import TorchyardError
from torchyard_core.fleet.gpu_occupancy import gpus_in_use
from torchyard_core.home import Home
from torchyard_gui.bridge.background_jobs import Cancelled, Job, Jobs
from torchyard_gui.bridge.fleet_model import FleetModel

if TYPE_CHECKING:
    from torchyard_core.app.cluster_bookings import MirroredChange
    from torchyard_core.booking.store import BookingStore, Watch
    from torchyard_core.booking.sync.cached_calendar import Calendar

Result = TypeVar("Result")
Opener = Callable[[], "tuple[Calendar, str]"]
"""Returns the calendar and the user's time zone."""

SOON_MS = 120
"""Delay in milliseconds between a change and the reload, so that a burst of changes, such as a series of fifty
bookings, causes only one reload.
"""
RETRY_MS = 4000
"""Interval in milliseconds between retries while the calendar is unreachable."""
UNWATCHED_MS = 60_000
"""Interval in milliseconds between reloads while no calendar is visible. The reloads are needed for reminders, because
changes by other users are not reported during this time.
"""
IN_USE_FOR = timedelta(minutes=3)
"""How long after its last usage record a GPU counts as in use, if its host sends no telemetry."""
SETTLE_EVERY = timedelta(minutes=1)
"""Minimum interval between two reloads that also release idle bookings and serve the waitlist."""
BEFORE_NOW, AFTER_NOW = timedelta(days=1), timedelta(days=1)
USES_EVERY_MS = 60_000
"""Interval in milliseconds at which usage records are read. Reloads of the calendar after changes do not read them."""


@dataclass(frozen=True)
class CalendarState:
    """The last loaded state of the calendar.

    `is_live` is False while the calendar is unreachable or has not been loaded. While the calendar is unreachable, the
    other fields show its state at the time `as_of`, and `why` contains the reason.
    """

    bookings: tuple[Booking, ...] = ()
    slots: tuple[Slot, ...] = ()
    as_of: datetime | None = None
    is_live: bool = False
    why: str = ""
    rules: Rules = field(default_factory=Rules)
    uses: tuple[Use, ...] = ()
    idle: tuple[IdleEvidence, ...] = ()
    waiting: tuple[Waiting, ...] = ()
    person: str = ""
    is_admin: bool = False
    is_private: bool = True
    zone: str = "UTC"
    place: str = ""


@dataclass(frozen=True)
class UseNow:
    """The current use of one GPU: the users ("" if unknown), and the time since which the GPU is known to be in use."""

    users: str
    since: datetime


@dataclass(frozen=True)
class _Loaded:
    """The result of one reload.

    `settled` contains the arguments of the signal `settled`, or None if the signal must not be emitted.
    """

    seen: CalendarState
    remembered: tuple[Slot, ...]
    settled: tuple[int, int] | None = None
    uses: tuple[Interval, tuple[Use, ...]] | None = None
    uses_are_new: bool = True


class BookingsModel(QObject):
    """Model of the calendar for one user.

    `show` sets the days to load. `changed` is emitted when the state changes, including changes by other users.
    """

    changed = Signal()
    """Emitted when `seen` has been replaced."""
    settled = Signal(int, int)
    """Emitted with the number of bookings that this desktop released as idle, and the number of bookings that it
    created for the waitlist.
    """
    mirrored = Signal(object)
    """Emitted with a MirroredChange when a change to bookings of cluster nodes is complete."""
    use_changed = Signal()
    """Emitted when telemetry has changed `in_use` or `unwatched_slots`."""

    def __init__(
        self,
        home: Home,
        fleet: FleetModel,
        parent: QObject | None = None,
        *,
        opener: Opener | None = None,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ):
        super().__init__(parent)
        self.home = home
        self.fleet = fleet
        self.jobs = Jobs(self)
        self.seen = CalendarState(zone=local_zone())
        self.has_loaded = False
        self.node_slots: tuple[Slot, ...] = ()
        """The known nodes of the fleet's clusters. Nodes that are booked become part of the calendar."""
        self.clock = clock
        self._open = opener or (lambda: _opened(home))
        self._lock = threading.Lock()
        self._calendar: Calendar | None = None
        self._zone = "UTC"
        self._watch: Watch | None = None
        self._watched_by: set[str] = set()
        self._closed = False
        self._ranges: dict[str, tuple[datetime, datetime]] = {}
        """The period that each caller shows, by caller. All of these periods are loaded."""
        self._loading: Job | None = None
        self._again = False
        self._remembered: tuple[Slot, ...] = ()
        self._copied = False
        """Whether a complete copy of the calendar for offline use was requested."""
        self._uses: tuple[Interval, tuple[Use, ...]] | None = None
        """Usage records, and the interval that they cover."""
        self._all_anew = True
        """Whether the next reload also reads the usage records."""
        self._settled_at: datetime | None = None
        self._use: dict[str, UseNow] = {}
        """Current use by slot, according to telemetry."""
        self._recent: tuple[Sequence[Use], list[Use]] = (), []
        """The usage records of `seen`, and those among them that may be current."""
        self._watched: frozenset[str] = frozenset()
        """IDs of the GPUs of hosts with telemetry."""
        self._soon = QTimer(self, singleShot=True, interval=SOON_MS)
        self._soon.timeout.connect(self._reload)
        self._uses_due = QTimer(self, singleShot=True, interval=USES_EVERY_MS)
        self._uses_due.timeout.connect(self.reload)
        self._retry = QTimer(self, singleShot=True, interval=RETRY_MS)
        self._retry.timeout.connect(self.reload)
        self._unwatched = QTimer(self, interval=UNWATCHED_MS)
        self._unwatched.timeout.connect(self.reload)
        fleet.host_changed.connect(self._fleet_changed)
        fleet.hosts_changed.connect(self._fleet_changed)
        for signal in (fleet.use_changed, fleet.host_changed, fleet.hosts_changed):
            signal.connect(self._take_use)
        self._take_use()

    @property
    def now(self) -> datetime:
        return self.clock().replace(microsecond=0)

    @property
    def in_use(self) -> Mapping[str, UseNow]:
        """The slots in use now.

        The slots are determined from telemetry that is at most `SAMPLE_VALID_S` old. For hosts without telemetry, such
        as those to which this desktop cannot log in, the agents' records in the calendar are used.
        """
        now = self.now
        if self._recent[0] is not self.seen.uses:
            self._recent = self.seen.uses, [use for use in self.seen.uses if now <= use.end + IN_USE_FOR]
        recorded = {
            use.gpu: UseNow(use.person, use.start)
            for use in self._recent[1]
            if use.start <= now <= use.end + IN_USE_FOR and use.gpu not in self._watched
        }
        return {**recorded, **self._use}

    @property
    def unbooked_use(self) -> Mapping[str, UseNow]:
        """The slots in use now without a booking."""
        now = self.now
        booked = {gpu for one in self.seen.bookings if one.is_running(now) for gpu in one.gpus}
        return {gpu: use for gpu, use in self.in_use.items() if gpu not in booked}

    @property
    def unwatched_slots(self) -> tuple[Slot, ...]:
        """The GPUs whose use is unknown, because their hosts send no telemetry and have no recent usage record."""
        in_use = self.in_use
        return tuple(
            slot
            for slot in self.seen.slots
            if not slot.is_cpu and slot.id not in self._watched and slot.id not in in_use
        )

    def _take_use(self, name: str = "") -> None:
        """Updates the use of GPUs from the latest samples of the hosts."""
        now = self.now
        use: dict[str, UseNow] = {}
        watched: frozenset[str] = frozenset()
        for status in self.fleet.hosts:
            if status.sample is None:
                continue
            watched |= {str(gpu["uuid"]) for gpu in status.sample["gpus"]}
            for gpu, users in gpus_in_use(status.sample).items():
                before = self._use.get(gpu)
                use[gpu] = UseNow(users, before.since if before is not None else now)
        if (use, watched) != (self._use, self._watched):
            self._use, self._watched = use, watched
            self.use_changed.emit()

    @property
    def slots(self) -> tuple[Slot, ...]:
        """The slots that can be booked: the calendar's slots, and nodes of clusters that the calendar does not contain
        yet.
        """
        known = {slot.id for slot in self.seen.slots}
        return (*self.seen.slots, *(slot for slot in self.node_slots if slot.id not in known))

    def booking(self, booking_id: str) -> Booking | None:
        return next((one for one in self.seen.bookings if one.id == booking_id), None)

    def show(self, since: datetime, until: datetime, by: str = "") -> None:
        """Sets the days that the caller `by` needs. If the days differ from the previous days, they are loaded, and
        `changed` is emitted.
        """
        if not self._watched_by and not self._unwatched.isActive() and not self._closed:
            self._unwatched.start()
        if self._ranges.get(by) != (since, until):
            self._ranges[by] = since, until
            self.reload()

    def watch(self, on: bool, by: str = "") -> None:
        """Sets whether the caller `by` is showing a calendar.

        While any caller shows a calendar, the database connection stays open, and changes by other users are reported
        immediately.
        """
        was = bool(self._watched_by)
        with self._lock:
            (self._watched_by.add if on else self._watched_by.discard)(by)
        is_watched = bool(self._watched_by)
        if is_watched and not was:
            self._unwatched.stop()
            self.reload()
        elif was and not is_watched and not self._closed:
            self._unwatched.start()
            with self._lock:
                watch, calendar = self._watch, self._calendar
                self._watch = None
            in_background(lambda: _close_connection(watch, calendar))

    def reload(self) -> None:
        """Reloads the calendar and the usage records. If a reload is in progress, the new one follows it."""
        self._all_anew = True
        self._reload()

    def _reload(self) -> None:
        """Reloads the calendar.

        Reads usage records only if none are known for the period to load, or if `reload` was called.
        """
        if self._closed or not self._ranges:
            return
        if self._loading is not None and not self._loading.is_finished:
            self._again = True
            return
        self._again = False
        since = min(begin for begin, _ in self._ranges.values())
        until = max(end for _, end in self._ranges.values())
        now = self.now
        # The current time is rounded down to the hour. Otherwise, the interval would differ on each call, and the usage
        # records would be read every time.
        hour = now.replace(minute=0, second=0)
        time = Interval(min(since, hour - BEFORE_NOW), max(until, hour + AFTER_NOW))
        facts = self.fleet.facts()
        remembered = self._remembered
        uses = self._uses[1] if self._uses is not None and self._uses[0] == time else None
        anew, self._all_anew = self._all_anew or uses is None, False
        settle = self._settled_at is None or now - self._settled_at >= SETTLE_EVERY

        def look() -> _Loaded:
            return self._look(time, facts, remembered, settle, uses, anew)

        self._loading = self.jobs.run(look, self._arrived, self._failed)

    def _look(
        self,
        time: Interval,
        facts: Sequence[Any],
        remembered: tuple[Slot, ...],
        settle: bool,
        known: tuple[Use, ...] | None,
        anew: bool,
    ) -> _Loaded:
        """Loads the calendar. Called on a background thread.

        Args:
            known: The last usage records if they cover the interval, otherwise None.
            anew: Whether to read the usage records again even if `known` is given.
        """
        from torchyard_core.booking.errors import StoreUnavailable
        from torchyard_core.booking.slots import slots_of

        calendar = self._calendar_now()
        try:
            store = calendar.store()
        except StoreUnavailable:
            view = calendar.view(time.start, time.end)
            away = replace(self.seen, bookings=view.bookings, slots=view.slots, as_of=view.as_of, is_live=False)
            return _Loaded(replace(away, why=view.why, zone=self._zone), remembered)
        found = slots_of(facts, is_private=store.is_private)
        if found and found != remembered:
            store.remember_slots(found)
        settled = (len(store.apply_idle()), len(store.serve_waiting())) if settle else None
        view = calendar.view(time.start, time.end)
        if not view.is_live:
            return _Loaded(replace(self.seen, is_live=False, why=view.why, as_of=view.as_of), remembered)
        self._watch_once(calendar, store)
        uses = store.uses(time.start, time.end) if anew else known or ()
        seen = CalendarState(
            bookings=view.bookings,
            slots=view.slots,
            as_of=view.as_of,
            is_live=True,
            rules=store.rules(),
            # Records that equal earlier ones are replaced by the earlier objects, so that the window does not draw them
            # again.
            uses=known if known is not None and uses == known else uses,
            idle=store.idle_evidence(),
            waiting=store.waiting(),
            person=store.person,
            is_admin=store.is_admin,
            is_private=store.is_private,
            zone=self._zone,
            place=store.place,
        )
        return _Loaded(seen, found, settled, (time, seen.uses), anew)

    def _calendar_now(self) -> Calendar:
        with self._lock:
            if self._calendar is None:
                self._calendar, self._zone = self._open()
            return self._calendar

    def _watch_once(self, calendar: Calendar, store: BookingStore) -> None:
        with self._lock:
            if calendar is not self._calendar:
                return  # The calendar was reopened in the meantime, so `calendar` is no longer in use.
            store.keep_connection(bool(self._watched_by))
            if self._watched_by and self._watch is None and not self._closed:
                self._watch = store.watch(lambda what: self.jobs.tell(self._soon.start))

    def _arrived(self, found: _Loaded) -> None:
        self.seen, self._remembered, settled = found.seen, found.remembered, found.settled
        self.has_loaded = True
        self._uses = found.uses
        if found.uses_are_new:
            self._uses_due.stop()
        elif not self._uses_due.isActive():
            self._uses_due.start()
        if settled is not None:
            self._settled_at = self.now
        if self.seen.is_live:
            self._retry.stop()
            if not self._copied:
                self._copied = True
                self.jobs.run(lambda: self._calendar_now().keep(all_of_it=True))
        else:
            self._retry.start()
        self.changed.emit()
        if settled is not None and any(settled):
            self.settled.emit(*settled)
        if self._again:
            self._reload()

    def _failed(self, error: TorchyardError) -> None:
        """Reports why a reload failed, such as unreadable settings or missing rights, and schedules a retry."""
        self.seen = replace(self.seen, is_live=False, why=error.sentence())
        self.has_loaded = self._all_anew = True
        self._retry.start()
        self.changed.emit()

    def _fleet_changed(self, name: str = "") -> None:
        if self._ranges and not self._closed:
            self._soon.start()

    def ask(
        self,
        question: Callable[[BookingStore], Result],
        done: Callable[[Result], None],
        failed: Callable[[TorchyardError], None],
        owner: QObject | None = None,
    ) -> Job:
        """Runs a read-only query of the store on a background thread."""
        return self.jobs.run(lambda: question(self._calendar_now().store()), done, failed, owner=owner)

    def act(
        self,
        deed: Callable[[BookingStore], Result],
        done: Callable[[Result], None] | None = None,
        failed: Callable[[TorchyardError], None] | None = None,
        owner: QObject | None = None,
        nodes: Iterable[str] = (),
    ) -> Job:
        """Runs a change to the store on a background thread, then reloads the calendar.

        Changed bookings of cluster nodes are mirrored as Slurm reservations. If Slurm refuses a reservation, or the job
        is cancelled, the change to the store is reverted.

        If the database is unreachable, nothing is changed and `failed` is called.

        Args:
            nodes: IDs of slots that the change will book.
        """
        job, wanted = Job(), tuple(nodes)

        def did(change: MirroredChange[Result]) -> None:
            self.reload()
            if done is not None:
                done(change.result)
            if change.mirrored or change.errors:
                self.mirrored.emit(change)

        def refused(error: TorchyardError) -> None:
            self.reload()  # The store may have refused the change because the displayed state is outdated.
            if failed is not None:
                failed(error)

        return self.jobs.run(lambda: self._perform(deed, wanted, job), did, refused, owner=owner, job=job)

    def _perform(
        self, deed: Callable[[BookingStore], Result], nodes: Sequence[str], job: Job
    ) -> MirroredChange[Result]:
        """Changes the store, and mirrors changed bookings of nodes to Slurm. Called on a background thread."""
        from torchyard_core.app.cluster_bookings import ClusterBookings, MirroredChange

        calendar = self._calendar_now()
        store = calendar.store()
        if not self.fleet.inventory.clusters and not any(slot.node for slot in self.seen.slots):
            return MirroredChange(deed(store))
        from torchyard_core.app.desktop import Desktop

        desktop = Desktop(self.home, self.fleet.fleet, calendar, self._zone)
        try:
            return ClusterBookings(desktop, store).perform(deed, nodes, job.checkpoint)
        except Cancelled:
            self.jobs.tell(self.reload)
            raise

    def reopen(self) -> None:
        """Reopens the calendar after the settings have changed."""
        with self._lock:
            watch, calendar = self._watch, self._calendar
            self._watch = self._calendar = None
        in_background(lambda: _close(watch, calendar))
        if self._loading is not None:
            self._loading.cancel()
        self.seen = CalendarState(zone=self.seen.zone)
        self._remembered, self._uses, self._settled_at, self._copied = (), None, None, False
        self.has_loaded = False
        self.changed.emit()
        self.reload()

    def store(self) -> BookingStore:
        """Returns the store. Call it on a background thread. Raises StoreUnavailable if the database is unreachable."""
        return self._calendar_now().store()

    def close(self) -> None:
        """Stops all updates, and closes the database in the background."""
        self._closed = True
        for timer in (self._soon, self._retry, self._uses_due, self._unwatched):
            timer.stop()
        self.jobs.close()
        with self._lock:
            watch, calendar = self._watch, self._calendar
            self._watch = None

        in_background(lambda: _close(watch, calendar))


def _close(watch: Watch | None, calendar: Calendar | None) -> None:
    """Closes a calendar; runs on a background thread."""
    if watch is not None:
        watch.close()
    if calendar is not None:
        calendar.close()


def _close_connection(watch: Watch | None, calendar: Calendar | None) -> None:
    """Closes the connections of a calendar that is no longer visible. Called on a background thread."""
    if watch is not None:
        watch.close()
    if calendar is not None:
        calendar.rest()


def _opened(home: Home) -> tuple[Calendar, str]:
    """Returns the configured calendar and time zone. Called on a background thread."""
    from torchyard_core.app.desktop import calendar_of, zone_for
    from torchyard_core.user_settings import read_user_settings

    chosen = read_user_settings(home.settings_file)
    return calendar_of(home, chosen), zone_for(chosen)

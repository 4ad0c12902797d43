"""The user's calendar. While the database is unavailable, its last known state is shown."""

from __future__ import annotations

import threading
import time
from bisect import bisect_left, insort
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING

from torchyard_core import formatting
from torchyard_core.booking.errors import StoreUnavailable
from torchyard_core.booking.intervals import Interval
from torchyard_core.booking.model import Booking, Changes, Position, Slot
from torchyard_core.booking.time_parser import local_zone
from torchyard_core.errors import TorchyardError

if TYPE_CHECKING:
    from torchyard_core.booking.store import BookingStore
    from torchyard_core.booking.sync.local_copy import LocalCopy

SPARE = timedelta(days=2)
"""The bookings of a loaded period are reused for a requested period that is shorter by at most this duration."""
RETRY_S = 3.0
"""Seconds between attempts to reach an unavailable database. Otherwise each redraw would wait for the connection."""


@dataclass(frozen=True)
class View:
    """Bookings of a period, read at `as_of`. If `is_live` is false, they may be outdated, and `why` gives the reason.

    `as_of` is None if the bookings could not be read and no earlier state is known.
    """

    bookings: tuple[Booking, ...]
    slots: tuple[Slot, ...]
    as_of: datetime | None
    is_live: bool
    why: str = ""
    known: Interval | None = None
    """The period that is covered, which may differ from the requested one; None if no bookings were read."""


@dataclass(frozen=True)
class _Loaded:
    """Loaded bookings of a period, and their position in the change log."""

    time: Interval
    position: Position
    bookings: tuple[Booking, ...]
    """The bookings, ordered by start and ID."""
    slots: tuple[Slot, ...] = ()
    as_of: datetime | None = None
    last: tuple[Position, Changes] | None = None
    """The changes that were applied last, and the position in the change log before them."""

    def part(self, since: datetime, until: datetime) -> tuple[Booking, ...]:
        """Returns the bookings that overlap a period within the loaded period."""
        begun = bisect_left(self.bookings, since, key=_start)
        earlier = tuple(one for one in self.bookings[:begun] if one.end > since)
        return earlier + self.bookings[begun : bisect_left(self.bookings, until, lo=begun, key=_start)]

    def serves(self, asked: Interval) -> bool:
        return _covers(self.time, asked) and self.time.duration <= asked.duration + SPARE

    def with_changes(self, changes: Changes) -> _Loaded:
        touching = [one for one in changes.bookings if one.start < self.time.end and one.end > self.time.start]
        changed = changes.gone.union(one.id for one in changes.bookings)
        bookings = [one for one in self.bookings if one.id not in changed]
        for one in touching:
            insort(bookings, one, key=_start_and_id)
        return replace(
            self,
            position=changes.position,
            bookings=tuple(bookings) if changed else self.bookings,
            last=(self.position, changes),
        )


class Calendar:
    """A user's access to the bookings. Opens the database at first use, and tries again after it was unavailable."""

    def __init__(
        self,
        url: str,
        person: str,
        cache: Path,
        *,
        open_it: Callable[[str, str], BookingStore] | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ):
        self._url = url
        self._person = person
        self._cache = cache
        """The file of the calendar's local copy."""
        self._open = open_it or _open_store
        self._monotonic = monotonic
        self._store: BookingStore | None = None
        self._away: tuple[float, StoreUnavailable] | None = None
        self._is_kept = True
        """Whether `store` has not been called since the copy was last updated."""
        self._is_copying = False
        """Whether `keep` is completing the copy, in which case reading a view does not write to the copy."""
        self._loaded: _Loaded | None = None
        self._lock = threading.Lock()
        self._reading = threading.Lock()

    @property
    def person(self) -> str:
        """The user's name in the settings. In a team's database, `store().person` is the user's role."""
        return self._person

    @property
    def has_begun(self) -> bool:
        """Whether the calendar is a team's database, or a private file that exists.

        If there is no private file, there are no bookings, and views need not import SQLAlchemy.
        """
        return not self.is_private or Path(self._url.partition(":///")[2]).exists()

    @property
    def unreadable(self) -> frozenset[str]:
        """The unreadable rows of the database that were skipped."""
        return frozenset(self._store.unreadable) if self._store is not None else frozenset()

    @property
    def is_private(self) -> bool:
        """Whether the calendar is a file on this computer, which no other user can see."""
        return self._url.startswith("sqlite:")

    def store(self) -> BookingStore:
        """Returns the store, for making changes. Raises StoreUnavailable while the database is unavailable."""
        try:
            store, _ = self._connect()
            self._is_kept = False
            return store
        except StoreUnavailable as away:
            seen = self._copy().read(_NEVER, _NEVER)
            what = f"the bookings shown are as of {_clock(seen.as_of)}" if seen else "no copy of it is stored here"
            raise StoreUnavailable(
                f"{away.message.rstrip('.')}; {what}, and nothing was booked", hint=away.advice
            ) from None

    def view(self, since: datetime, until: datetime) -> View:
        """Returns the bookings of a period, or the last known state and its age if the database is unavailable.

        Repeated calls for the same period read only the changes.
        """

        def look(store: BookingStore, slots: tuple[Slot, ...], now: datetime) -> tuple[Booking, ...]:
            with self._reading:
                read = _load(self._loaded, store, Interval(since, until))
                self._loaded = replace(read, slots=slots, as_of=now)
            return read.part(since, until)

        return self._view(look, since, until)

    def view_of(self, owner: str | None, since: datetime, until: datetime) -> View:
        """Returns the bookings of a period, optionally of one owner. Loaded bookings are not reused."""
        return self._view(lambda store, *_: store.bookings(since, until, owner=owner), since, until, owner)

    def view_around(self, now: datetime, until: datetime) -> View:
        """Returns only the current booking of each GPU, and the next one that begins before `until`.

        Returns all known bookings of the period while the database is unavailable.
        """
        return self._view(lambda store, *_: store.bookings_around(now, until), now, until)

    def _view(
        self,
        look: Callable[[BookingStore, tuple[Slot, ...], datetime], tuple[Booking, ...]],
        since: datetime,
        until: datetime,
        owner: str | None = None,
    ) -> View:
        if self._store is None and not self.has_begun:
            return View((), (), datetime.now(UTC), True)
        try:
            store, now = self._connect()
            slots = store.slots()
            bookings = look(store, slots, now)
        except StoreUnavailable as away:
            with self._lock:
                self._away = (self._monotonic(), away)
            return self._last_known(Interval(since, until), owner, away.sentence())
        if not self._is_copying:
            self._keep(store, now, slots)
        return View(bookings, slots, now, True, known=Interval(since, until))

    def _last_known(self, asked: Interval, owner: str | None, why: str) -> View:
        """Returns the last known state: the local copy, or the loaded bookings if only those cover the period."""
        kept, read = self._copy().read(asked.start, asked.end), self._loaded
        if read is not None and _covers(read.time, asked) and not (kept is not None and _covers(kept.known, asked)):
            view = View(read.part(asked.start, asked.end), read.slots, read.as_of, False, why, read.time)
        elif kept is not None:
            view = View(kept.bookings, kept.slots, kept.as_of, False, why, kept.known)
        else:
            return View((), (), None, False, why)
        return replace(view, bookings=tuple(one for one in view.bookings if owner in (None, one.owner)))

    def keep(self, *, all_of_it: bool = False) -> None:
        """Updates the local copy of the calendar and extends it by one step. With `all_of_it`, completes the copy.

        Errors are ignored. Without `all_of_it`, the copy is updated only if `store` was called after the last update.
        """
        if self._is_kept and not all_of_it:
            return
        self._is_copying = all_of_it
        try:
            is_whole = False
            while not is_whole:
                store, now = self._connect()
                is_whole = self._keep(store, now, store.slots(), all_of_it=all_of_it) or not all_of_it
        except TorchyardError:
            return  # The copy is not updated. Views show the age of the copy.
        finally:
            self._is_copying = False

    def rest(self) -> None:
        """Closes the connection to a team's database now, and again after each later call.

        This applies until `BookingStore.keep_connection(True)` is called.
        """
        with self._lock:
            if self._store is not None:
                self._store.keep_connection(False)

    def close(self) -> None:
        with self._lock:
            if self._store is not None:
                self._store.close()
            self._store = None

    def _connect(self) -> tuple[BookingStore, datetime]:
        """Opens the store if necessary.

        Returns the store, and the time by the store's clock. Raises StoreUnavailable if the database is unavailable.
        """
        with self._lock:
            if self._away is not None and self._monotonic() - self._away[0] < RETRY_S:
                raise self._away[1]
            try:
                if self._store is None:
                    self._store = self._open(self._url, self._person)
                now = self._store.now()
            except StoreUnavailable as away:
                self._away = (self._monotonic(), away)
                raise
            self._away = None
            return self._store, now

    def _keep(self, store: BookingStore, now: datetime, slots: tuple[Slot, ...], *, all_of_it: bool = False) -> bool:
        from torchyard_core.booking.sync.local_copy import AT_A_TIME, MANY

        try:
            last = self._loaded.last if self._loaded is not None else None
            is_whole = self._copy().follow(store, now, slots, MANY if all_of_it else AT_A_TIME, last)
        except StoreUnavailable:
            return True  # The next call to the store reports the error.
        self._is_kept = True
        return is_whole

    def _copy(self) -> LocalCopy:
        # This import loads sqlite3, which is necessary only to read or write the local copy.
        from torchyard_core.booking.sync.local_copy import LocalCopy

        return LocalCopy(self._cache, self._url)


def _load(read: _Loaded | None, store: BookingStore, asked: Interval) -> _Loaded:
    """Returns the loaded bookings with later changes applied, or reads all bookings of the period again."""
    if read is not None and read.serves(asked) and (changes := store.changes(read.position)) is not None:
        return read.with_changes(changes)
    # The position is read before the bookings. Otherwise a change between the two reads would be missed.
    position = store.position()
    # The period is extended to whole hours. Otherwise a period that moves with the current time would be read
    # completely at every call.
    hour = timedelta(hours=1)
    time = Interval(_whole_hour(asked.start), _whole_hour(asked.end) + hour)
    return _Loaded(time, position, store.bookings(time.start, time.end))


def _covers(time: Interval, asked: Interval) -> bool:
    return time.start <= asked.start and asked.end <= time.end


def _whole_hour(moment: datetime) -> datetime:
    return moment.replace(minute=0, second=0, microsecond=0)


_start = attrgetter("start")
_start_and_id = attrgetter("start", "id")
_NEVER = datetime(1970, 1, 1, tzinfo=UTC)


def age(view: View, now: datetime) -> str:
    """Formats the age of a view: `as of 2026-11-23 18:42, 35 min ago`.

    Returns an empty string for a live view, and for one without a known state.
    """
    if view.is_live or view.as_of is None:
        return ""
    return f"as of {_clock(view.as_of)}, {formatting.age((now - view.as_of).total_seconds())} ago"


def _clock(moment: datetime) -> str:
    return formatting.wall_clock(moment, local_zone(), formatting.DATE_AND_TIME)


def _open_store(url: str, person: str) -> BookingStore:
    # Importing SQLAlchemy takes 0.3 s, and most commands do not need it.
    from torchyard_core.booking.store import open_store

    return open_store(url, person)

"""The calendar while its database is away: the last known state with its age, and no booking until it is back."""

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
from torchyard_core.booking.errors import StoreAway
from torchyard_core.booking.intervals import Interval
from torchyard_core.booking.model import Booking, Changes, Position, Slot
from torchyard_core.booking.time_parser import local_zone
from torchyard_core.errors import TorchyardError

if TYPE_CHECKING:
    from torchyard_core.booking.store import BookingStore
    from torchyard_core.booking.sync.local_copy import LocalCopy

SPARE = timedelta(days=2)
"""A time that was read serves shorter ones, too, where it is at most so much longer."""
RETRY_S = 3.0
"""While it is away, it is asked no more often: a window that redraws should not wait for time-outs."""


@dataclass(frozen=True)
class View:
    """What is shown. `as_of` is when it was so; `why` says what is the matter where it is not now."""

    bookings: tuple[Booking, ...]
    slots: tuple[Slot, ...]
    as_of: datetime | None
    is_live: bool
    why: str = ""
    known: Interval | None = None
    """The time of which it tells, where that may be less than was asked for."""


@dataclass(frozen=True)
class _Read:
    """What was read of a time, and up to which change it is followed."""

    time: Interval
    position: Position
    bookings: tuple[Booking, ...]
    """By start and ID."""
    slots: tuple[Slot, ...] = ()
    as_of: datetime | None = None
    last: tuple[Position, Changes] | None = None
    """The changes that it was last brought up to date with, and since when they are."""

    def part(self, since: datetime, until: datetime) -> tuple[Booking, ...]:
        """Those that touch a shorter time."""
        begun = bisect_left(self.bookings, since, key=_start)
        earlier = tuple(one for one in self.bookings[:begun] if one.end > since)
        return earlier + self.bookings[begun : bisect_left(self.bookings, until, lo=begun, key=_start)]

    def covers(self, asked: Interval) -> bool:
        return _covers(self.time, asked)

    def serves(self, asked: Interval) -> bool:
        return self.covers(asked) and self.time.duration <= asked.duration + SPARE

    def followed(self, changes: Changes) -> _Read:
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
    """One person's way to the team's bookings. Opens the database when first needed, and again after it was away."""

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
        """The file of the copy."""
        self._open = open_it or _open_store
        self._monotonic = monotonic
        self._store: BookingStore | None = None
        self._away: tuple[float, StoreAway] | None = None
        self._is_kept = True
        """Nothing was asked of the store since the copy was made."""
        self._is_copying = False
        """All of the copy is being made: nothing else writes to it here meanwhile."""
        self._read: _Read | None = None
        self._lock = threading.Lock()
        self._reading = threading.Lock()

    @property
    def person(self) -> str:
        """Who asks, as the settings have it; the database's role is the store's to tell."""
        return self._person

    @property
    def has_begun(self) -> bool:
        """False where the private file is not there yet: nobody has booked anything on this computer, and nothing
        needs to be opened (and SQLAlchemy imported) to know that."""
        return not self.is_private or Path(self._url.partition(":///")[2]).exists()

    @property
    def unreadable(self) -> frozenset[str]:
        """Rows of the database that were skipped, as they cannot be understood."""
        return frozenset(self._store.unreadable) if self._store is not None else frozenset()

    @property
    def is_private(self) -> bool:
        """Whether nobody else sees it: a file on this computer."""
        return self._url.startswith("sqlite:")

    def store(self) -> BookingStore:
        """For booking. Raises StoreAway where the database is away: then nothing is booked."""
        try:
            store, _ = self._reached()
            self._is_kept = False
            return store
        except StoreAway as away:
            seen = self._copy().read(_NEVER, _NEVER)
            what = f"what you see is of {_clock(seen.as_of)}" if seen else "nothing of it is known here"
            raise StoreAway(f"{away.message.rstrip('.')}; {what}, and nothing was booked", hint=away.hint) from None

    def view(self, since: datetime, until: datetime) -> View:
        """The bookings of that time; where the database is away those last seen, with their age. Never waits twice
        for a database that has just not answered.

        Asked again for the same time, it reads only what has changed since.
        """

        def look(store: BookingStore, slots: tuple[Slot, ...], now: datetime) -> tuple[Booking, ...]:
            with self._reading:
                read = _followed(self._read, store, Interval(since, until))
                self._read = replace(read, slots=slots, as_of=now)
            return read.part(since, until)

        return self._view(look, since, until)

    def view_of(self, owner: str | None, since: datetime, until: datetime) -> View:
        """As `view`, of one person where one is named, and read anew."""
        return self._view(lambda store, *_: store.bookings(since, until, owner=owner), since, until, owner)

    def view_around(self, now: datetime, until: datetime) -> View:
        """As `view`, of each GPU only the booking of now and the next one; while the database is away, all."""
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
            store, now = self._reached()
            slots = store.slots()
            bookings = look(store, slots, now)
        except StoreAway as away:
            with self._lock:
                self._away = (self._monotonic(), away)
            return self._last_seen(Interval(since, until), owner, away.sentence())
        if not self._is_copying:
            self._keep(store, now, slots)
        return View(bookings, slots, now, True, known=Interval(since, until))

    def _last_seen(self, asked: Interval, owner: str | None, why: str) -> View:
        """By the copy, which other processes renew, too; by what was read here where that alone covers the time."""
        kept, read = self._copy().read(asked.start, asked.end), self._read
        if read is not None and read.covers(asked) and not (kept is not None and _covers(kept.known, asked)):
            view = View(read.part(asked.start, asked.end), read.slots, read.as_of, False, why, read.time)
        elif kept is not None:
            view = View(kept.bookings, kept.slots, kept.as_of, False, why, kept.known)
        else:
            return View((), (), None, False, why)
        return replace(view, bookings=tuple(one for one in view.bookings if owner in (None, one.owner)))

    def keep(self, *, all_of_it: bool = False) -> None:
        """Keeps what the calendar is like now for when its database is away, where the store was used and nobody has
        looked at it since: who only ever books has seen nothing of it. The copy grows to its full length by and by;
        with `all_of_it` now.
        """
        if self._is_kept and not all_of_it:
            return
        self._is_copying = all_of_it
        try:
            is_whole = False
            while not is_whole:
                store, now = self._reached()
                is_whole = self._keep(store, now, store.slots(), all_of_it=all_of_it) or not all_of_it
        except TorchyardError:
            return  # what was done is done; the copy is of an earlier time, and says so
        finally:
            self._is_copying = False

    def rest(self) -> None:
        """Keeps no connection open between calls, until the store is asked to."""
        with self._lock:
            if self._store is not None:
                self._store.keep_connection(False)

    def close(self) -> None:
        """Lets go of the database."""
        with self._lock:
            if self._store is not None:
                self._store.close()
            self._store = None

    def _reached(self) -> tuple[BookingStore, datetime]:
        """The store, and the time by its clock."""
        with self._lock:
            if self._away is not None and self._monotonic() - self._away[0] < RETRY_S:
                raise self._away[1]
            try:
                if self._store is None:
                    self._store = self._open(self._url, self._person)
                now = self._store.now()
            except StoreAway as away:
                self._away = (self._monotonic(), away)
                raise
            self._away = None
            return self._store, now

    def _keep(self, store: BookingStore, now: datetime, slots: tuple[Slot, ...], *, all_of_it: bool = False) -> bool:
        from torchyard_core.booking.sync.local_copy import AT_A_TIME, MANY

        try:
            last = self._read.last if self._read is not None else None
            is_whole = self._copy().follow(store, now, slots, MANY if all_of_it else AT_A_TIME, last)
        except StoreAway:
            return True  # it was there a moment ago; the next question says so
        self._is_kept = True
        return is_whole

    def _copy(self) -> LocalCopy:
        from torchyard_core.booking.sync.local_copy import LocalCopy  # and with it sqlite3, where the calendar is used

        return LocalCopy(self._cache, self._url)


def _followed(read: _Read | None, store: BookingStore, asked: Interval) -> _Read:
    """What was read of the asked time with the changes since; read anew where that cannot be."""
    if read is not None and read.serves(asked) and (changes := store.changes(read.position)) is not None:
        return read.followed(changes)
    position = store.position()  # first: what is changed meanwhile is then read again, and never missed
    hour = timedelta(hours=1)  # whole hours: a window that goes with the time reads anew once an hour
    time = Interval(_whole_hour(asked.start), _whole_hour(asked.end) + hour)
    return _Read(time, position, store.bookings(time.start, time.end))


def _covers(time: Interval, asked: Interval) -> bool:
    return time.start <= asked.start and asked.end <= time.end


def _whole_hour(moment: datetime) -> datetime:
    return moment.replace(minute=0, second=0, microsecond=0)


_start = attrgetter("start")
_start_and_id = attrgetter("start", "id")
_NEVER = datetime(1970, 1, 1, tzinfo=UTC)


def age(view: View, now: datetime) -> str:
    """`as of 18:42, 35 min ago`; nothing for a live one."""
    if view.is_live or view.as_of is None:
        return ""
    return f"as of {_clock(view.as_of)}, {formatting.age((now - view.as_of).total_seconds())} ago"


def _clock(moment: datetime) -> str:
    return formatting.wall_clock(moment, local_zone(), formatting.DATE_AND_TIME)


def _open_store(url: str, person: str) -> BookingStore:
    from torchyard_core.booking.store import open_store  # SQLAlchemy takes 0.3 s, which most commands do not need

    return open_store(url, person)

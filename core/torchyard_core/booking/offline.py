"""The calendar while its database is away: the last known state with its age, and no booking until it is back."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchyard_core.booking.intervals import Interval
from torchyard_core.booking.model import Booking, Slot, from_rfc3339, rfc3339
from torchyard_core.booking.refusals import StoreAway
from torchyard_core.booking.zones import local_zone, zone_of
from torchyard_core.errors import TorchyardError
from torchyard_core.topology.atomic_file import write_atomically

if TYPE_CHECKING:
    from torchyard_core.booking.store import BookingStore

VERSION = 1
KEPT_BEFORE = timedelta(days=14)
KEPT_AFTER = timedelta(days=60)
RETRY_S = 3.0
"""While it is away, it is asked no more often: a window that redraws should not wait for time-outs."""
_PRIVATE = 0o600


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
        self._open = open_it or _open_store
        self._monotonic = monotonic
        self._store: BookingStore | None = None
        self._away: tuple[float, StoreAway] | None = None
        self._is_kept = True
        """Nothing was asked of the store since the copy was made."""
        self._lock = threading.Lock()

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
    def is_private(self) -> bool:
        """Whether nobody else sees it: a file on this computer."""
        return self._url.startswith("sqlite:")

    def store(self) -> BookingStore:
        """For booking. Raises StoreAway where the database is away: then nothing is booked."""
        try:
            store = self._reached()
            self._is_kept = False
            return store
        except StoreAway as away:
            seen = self._kept()
            what = f"what you see is of {_clock(seen.as_of)}" if seen and seen.as_of else "nothing of it is known here"
            raise StoreAway(f"{away.message.rstrip('.')}; {what}, and nothing was booked", hint=away.hint) from None

    def view(self, since: datetime, until: datetime) -> View:
        """The bookings of that time; where the database is away those last seen, with their age. Never waits twice
        for a database that has just not answered."""
        if self._store is None and not self.has_begun:
            return View((), (), datetime.now(UTC), True)
        try:
            seen = self._seen(self._reached(), since, until)
        except StoreAway as away:
            with self._lock:
                self._away = (self._monotonic(), away)
            kept = self._kept()
            if kept is None:
                return View((), (), None, False, away.sentence())
            inside = tuple(one for one in kept.bookings if one.start < until and one.end > since)
            return replace(kept, bookings=inside, why=away.sentence())
        self._keep(seen)
        return replace(seen, bookings=tuple(one for one in seen.bookings if one.start < until and one.end > since))

    def keep(self) -> None:
        """Keeps what the calendar is like now for when its database is away, where the store was used and nobody has
        looked at it since: who only ever books has seen nothing of it."""
        if self._is_kept:
            return
        try:
            now = datetime.now(UTC)
            self._keep(self._seen(self._reached(), now, now))
        except TorchyardError:
            return  # what was done is done; the copy is of an earlier time, and says so

    def close(self) -> None:
        """Lets go of the database."""
        with self._lock:
            if self._store is not None:
                self._store.close()
            self._store = None

    def _reached(self) -> BookingStore:
        with self._lock:
            if self._away is not None and self._monotonic() - self._away[0] < RETRY_S:
                raise self._away[1]
            try:
                if self._store is None:
                    self._store = self._open(self._url, self._person)
                self._store.now()
            except StoreAway as away:
                self._away = (self._monotonic(), away)
                raise
            self._away = None
            return self._store

    def _seen(self, store: BookingStore, since: datetime, until: datetime) -> View:
        """That time and what is kept around now, as it is."""
        now = store.now()
        known = Interval(min(since, now - KEPT_BEFORE), max(until, now + KEPT_AFTER))
        return View(store.bookings(known.start, known.end), store.slots(), now, True, known=known)

    def _keep(self, view: View) -> None:
        content = {
            "version": VERSION,
            "url": self._url,
            "as_of": rfc3339(view.as_of) if view.as_of else None,
            "from": rfc3339(view.known.start) if view.known else None,
            "until": rfc3339(view.known.end) if view.known else None,
            "slots": [slot.__dict__ for slot in view.slots],
            "bookings": [booking.to_json() for booking in view.bookings],
        }
        try:
            write_atomically(self._cache, json.dumps(content), mode=_PRIVATE)
        except TorchyardError:
            return  # a full disk: the calendar itself is fine
        self._is_kept = True

    def _kept(self) -> View | None:
        try:
            content: dict[str, Any] = json.loads(self._cache.read_text(encoding="utf-8"))
            if content["version"] != VERSION or content["url"] != self._url:
                return None
            slots = tuple(Slot(**slot) for slot in content["slots"])
            bookings = tuple(Booking.from_json(booking) for booking in content["bookings"])
            known = Interval(from_rfc3339(content["from"]), from_rfc3339(content["until"]))
            return View(bookings, slots, from_rfc3339(content["as_of"]), False, known=known)
        except (OSError, ValueError, KeyError, TypeError):
            return None


def age(view: View, now: datetime) -> str:
    """`as of 18:42, 35 min ago`; nothing for a live one."""
    if view.is_live or view.as_of is None:
        return ""
    minutes = max(0, int((now - view.as_of).total_seconds() // 60))
    ago = (
        f"{minutes} min" if minutes < 120 else f"{minutes // 60} h" if minutes < 48 * 60 else f"{minutes // 1440} days"
    )
    return f"as of {_clock(view.as_of)}, {ago} ago"


def _clock(moment: datetime) -> str:
    return f"{moment.astimezone(zone_of(local_zone())):%Y-%m-%d %H:%M}"


def _open_store(url: str, person: str) -> BookingStore:
    from torchyard_core.booking.store import open_store  # SQLAlchemy takes 0.3 s, which most commands do not need

    return open_store(url, person)

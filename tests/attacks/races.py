"""Races between processes that use one calendar, and checks of the invariants that they might violate.

The checks query the database's tables with their own SQL, without the calendar's code.
"""

from __future__ import annotations

import multiprocessing
import random
import sqlite3
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.core.booking.cluster import Cluster
from tests.core.booking.teams import SLOTS
from torchyard_core.booking.errors import PermissionDenied, Refused, StoreUnavailable
from torchyard_core.booking.model import Draft, IdleEvidence
from torchyard_core.booking.rules.team_rules import Rules
from torchyard_core.booking.search.slot_search import Wish
from torchyard_core.booking.store import BookingStore, open_store

ADMIN = "ada"
PERSONS = ("kim", "lee", ADMIN)
LONG_S = 300
_FORK = multiprocessing.get_context("fork")
GPUS = tuple(slot.id for slot in SLOTS if not slot.is_cpu)
HOUR = timedelta(hours=1)
LIVE = "('booked', 'active')"
QUOTA_H = 20.0

Told = list[tuple[str, str]]
"""The attempts of a client, each with its result: done, refused, busy, or failed with the error."""


class Place:
    """Opens the calendar under test for clients, and reads its tables.

    Without a `server`, the calendar is an SQLite file.
    """

    def __init__(self, file: Path | None = None, server: Cluster | None = None, database: str = ""):
        self._file, self._server, self._database = file, server, database
        with closing(self.open(ADMIN)) as store:
            store.remember_slots(SLOTS)

    def open(self, person: str) -> BookingStore:
        url = f"sqlite:///{self._file}" if self._server is None else self._server.url(person, self._database)
        return open_store(url, person)

    def sql(self, statement: str) -> list[tuple[Any, ...]]:
        """Executes a statement without the calendar's code and permissions, and returns the selected rows."""
        if self._server is None:
            with closing(sqlite3.connect(str(self._file), timeout=60, isolation_level=None)) as connection:
                return connection.execute(statement).fetchall()
        with self._server.connect("owner", self._database) as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []

    @property
    def is_file(self) -> bool:
        return self._server is None

    def seconds(self, column: str) -> str:
        """Returns an SQL expression that converts a time column to seconds since 1970."""
        return column if self.is_file else f"extract(epoch FROM {column})::bigint"


@dataclass
class Raced:
    """The result of a race. `violations` contains a description of each violation."""

    violations: list[str] = field(default_factory=list)
    ends: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    """The number of attempts by kind and result, such as `book done`."""


class Race:
    """One kind of race. In each round, `prepare` runs first, then `act` in all clients at once, and finally `judge`."""

    def begin(self, place: Place, admin: BookingStore) -> None:
        """Sets the rules of the calendar before the first round, and installs the triggers that this race needs."""

    def prepare(self, place: Place, admin: BookingStore, turn: int) -> Any:
        """Prepares a round, and returns the argument that all clients receive in this round."""

    def act(self, store: BookingStore, number: int, chance: random.Random, given: Any) -> Iterator[tuple[str, Any]]:
        """Yields a name and a function for each attempt of a client, in order."""
        raise NotImplementedError

    def judge(self, place: Place, given: Any) -> list[str]:
        """Returns the violations that are visible in the tables after a round."""
        raise NotImplementedError


def run(place: Place, race: Race, clients: int, rounds: int, seed: int) -> Raced:
    """Runs rounds in which all clients act concurrently."""
    raced = Raced()
    barrier = _FORK.Barrier(clients)
    ends = [_FORK.Pipe() for _ in range(clients)]
    racers = [
        _FORK.Process(target=_client, args=(place, race, number, seed, barrier, far), daemon=True)
        for number, (_, far) in enumerate(ends)
    ]
    for racer in racers:
        racer.start()
    try:
        with closing(place.open(ADMIN)) as admin:
            race.begin(place, admin)
            for turn in range(rounds):
                given = race.prepare(place, admin, turn)
                for near, _ in ends:
                    near.send(given)
                for near, _ in ends:
                    if not near.poll(LONG_S):
                        raise TimeoutError(f"a client has not ended round {turn} after {LONG_S} s")
                    for act, end in near.recv():
                        raced.ends[f"{act} {end.partition(':')[0]}"] += 1
                        if end.startswith("failed"):
                            raced.violations.append(f"{act} {end}")
                raced.violations += race.judge(place, given)
        for near, _ in ends:
            near.send(None)
        for racer in racers:
            racer.join(LONG_S)
    finally:
        for racer in racers:
            if racer.is_alive():
                racer.kill()
                racer.join()
        for pair in ends:
            for end in pair:
                end.close()
    return raced


def _client(place: Place, race: Race, number: int, seed: int, barrier: Any, given: Any) -> None:
    store = place.open(PERSONS[number % len(PERSONS)])
    store.conflicts.nearest = lambda *_: ()  # type: ignore[method-assign]  # The suggested alternatives are not part of the race.
    chance = random.Random(seed * 1000 + number)
    with closing(store):
        while (what := given.recv()) is not None:
            told: Told = []
            barrier.wait(LONG_S)
            for name, call in race.act(store, number, chance, what):
                told.append((name, _end_of(call)))
            given.send(told)


def _end_of(call: Callable[[], object]) -> str:
    try:
        call()
        return "done"
    except (Refused, PermissionDenied):
        return "refused"
    except StoreUnavailable as away:
        return "busy" if "too busy" in away.message else f"failed: {away.message}"
    except Exception as error:  # No other exception is allowed, so it counts as a violation.
        return f"failed: {error!r}"


def overlaps(place: Place) -> list[str]:
    """Returns descriptions of overlapping bookings of the same GPU, and of incomplete bookings."""
    begin, end = place.seconds("starts"), place.seconds("ends")
    bookings = {
        row[0]: row[1:] for row in place.sql(f"SELECT id, {begin}, {end}, state IN {LIVE} FROM bookings ORDER BY id")
    }
    found: list[str] = []
    by_gpu: dict[str, list[tuple[int, int, str]]] = defaultdict(list)
    has: set[str] = set()
    for booking, gpu, starts, ends, live in place.sql(
        f"SELECT booking_id, gpu, {begin}, {end}, live FROM booking_gpus"
    ):
        has.add(booking)
        if booking not in bookings or (starts, ends, bool(live)) != (
            *bookings[booking][:2],
            bool(bookings[booking][2]),
        ):
            found.append(f"{gpu} of {booking} is {starts}-{ends}, and the booking {bookings.get(booking)}")
        if live:
            by_gpu[gpu].append((starts, ends, booking))
    found += [f"{one} has no GPU" for one in bookings if one not in has]
    for gpu, times in by_gpu.items():
        times.sort()
        for (_, ends, one), (starts, _, other) in pairwise(times):
            if starts < ends:
                found.append(f"{gpu} is booked twice: {one} and {other}")
    return found


def _now() -> datetime:
    return datetime.now(UTC).replace(microsecond=0)


class Clashes(Race):
    """Clients book, move and release overlapping groups of GPUs at overlapping times."""

    def begin(self, place: Place, admin: BookingStore) -> None:
        admin.set_rules(Rules(furthest_days=None))

    def prepare(self, place: Place, admin: BookingStore, turn: int) -> Any:
        return _now() + timedelta(days=1) + 8 * HOUR * turn

    def act(self, store: BookingStore, number: int, chance: random.Random, given: Any) -> Iterator[tuple[str, Any]]:
        mine: list[str] = []

        def some() -> tuple[tuple[str, ...], datetime, datetime]:
            start = given + timedelta(minutes=15 * chance.randrange(12))
            group = chance.sample(GPUS, chance.randint(1, 4))
            return tuple(group), start, start + timedelta(minutes=15 * chance.randint(1, 8))

        def book() -> None:
            gpus, start, end = some()
            mine.append(store.book(Draft(f"of {number}", gpus, start, end, "UTC")).id)

        def change() -> None:
            gpus, start, end = some()
            store.change(mine[-1], start=start, end=end, gpus=gpus)

        for _ in range(3):
            yield "book", book
            if mine and chance.random() < 0.5:
                yield "change", change
            if mine and chance.random() < 0.2:
                yield "cancel", lambda: store.cancel(mine.pop())

    def judge(self, place: Place, given: Any) -> list[str]:
        return overlaps(place)


class Quotas(Race):
    """The clients of each user make and extend so many bookings at the same time that all together would exceed the
    user's quota.
    """

    def begin(self, place: Place, admin: BookingStore) -> None:
        admin.set_rules(Rules(furthest_days=None, quota_gpu_hours=QUOTA_H))

    def prepare(self, place: Place, admin: BookingStore, turn: int) -> Any:
        today = _now().replace(hour=0, minute=0, second=0)
        return today - timedelta(days=today.weekday()) + timedelta(days=7 * (turn + 1))

    def act(self, store: BookingStore, number: int, chance: random.Random, given: Any) -> Iterator[tuple[str, Any]]:
        mine: list[tuple[str, datetime]] = []

        def book() -> None:
            start = given + HOUR * chance.randrange(-2, 160)  # Some bookings overlap an adjacent week.
            gpus = tuple(chance.sample(GPUS, chance.randint(1, 3)))
            end = start + HOUR * chance.randint(1, 4)
            mine.append((store.book(Draft(f"of {number}", gpus, start, end, "UTC")).id, end))

        def extend() -> None:
            booking, end = mine[-1]
            store.change(booking, end=end + HOUR * chance.randint(1, 3))

        for _ in range(3):
            yield "book", book
            if mine and chance.random() < 0.5:
                yield "extend", extend

    def judge(self, place: Place, given: Any) -> list[str]:
        begin, end = place.seconds("b.starts"), place.seconds("b.ends")
        hours: dict[tuple[str, int], float] = defaultdict(float)
        week_s = 7 * 86400
        first = int(given.timestamp())  # All weeks begin at the same UTC offset.
        for owner, starts, ends in place.sql(
            f"SELECT b.owner, {begin}, {end} FROM bookings b JOIN booking_gpus g ON g.booking_id = b.id "
            f"WHERE b.state IN {LIVE}"
        ):
            week = (starts - first) // week_s
            while first + week * week_s < ends:
                inside = min(ends, first + (week + 1) * week_s) - max(starts, first + week * week_s)
                hours[owner, week] += inside / 3600
                week += 1
        over = [
            f"{owner} has {much:g} of {QUOTA_H:g} GPU-hours" for (owner, _), much in hours.items() if much > QUOTA_H
        ]
        return over + overlaps(place)


class IdleRelease(Race):
    """Some clients release idle bookings while others report that the bookings are used, or start a run.

    Triggers record the order in which the rows of a booking and of its evidence were written.
    """

    def begin(self, place: Place, admin: BookingStore) -> None:
        admin.set_rules(Rules(idle_release_min=1))
        if place.is_file:
            place.sql("CREATE TABLE race_notes (number integer PRIMARY KEY, booking text, what text, since integer)")
            for event in ("INSERT", "UPDATE"):
                place.sql(
                    f"CREATE TRIGGER race_evidence_{event} AFTER {event} ON idle_evidence BEGIN "
                    "INSERT INTO race_notes (booking, what, since) "
                    "VALUES (NEW.booking_id, 'evidence', NEW.idle_since); END"
                )
            place.sql(
                "CREATE TRIGGER race_state AFTER UPDATE OF state ON bookings BEGIN "
                "INSERT INTO race_notes (booking, what) VALUES (NEW.id, NEW.state); END"
            )
            return
        place.sql("CREATE TABLE IF NOT EXISTS race_notes (number bigserial, booking text, what text, since bigint)")
        place.sql(
            """CREATE OR REPLACE FUNCTION race_evidence() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
               SET search_path = pg_catalog, torchyard AS $$ BEGIN
               INSERT INTO race_notes (booking, what, since)
               VALUES (NEW.booking_id, 'evidence', extract(epoch FROM NEW.idle_since)); RETURN NULL; END $$"""
        )
        place.sql(
            """CREATE OR REPLACE FUNCTION race_state() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
               SET search_path = pg_catalog, torchyard AS $$ BEGIN
               INSERT INTO race_notes (booking, what) VALUES (NEW.id, NEW.state); RETURN NULL; END $$"""
        )
        place.sql(
            "CREATE OR REPLACE TRIGGER race_evidence AFTER INSERT OR UPDATE ON idle_evidence "
            "FOR EACH ROW EXECUTE FUNCTION race_evidence()"
        )
        place.sql(
            "CREATE OR REPLACE TRIGGER race_state AFTER UPDATE OF state ON bookings "
            "FOR EACH ROW EXECUTE FUNCTION race_state()"
        )

    def prepare(self, place: Place, admin: BookingStore, turn: int) -> Any:
        for (booking,) in place.sql(f"SELECT id FROM bookings WHERE state IN {LIVE}"):
            with suppress(Refused):
                admin.release(booking)
        place.sql("DELETE FROM race_notes")
        start = _now() - timedelta(seconds=100)
        made = []
        for gpu in GPUS[:4]:
            booking = admin.book(Draft("idle", (gpu,), start, start + 2 * HOUR, "UTC", owner="kim"))
            admin.record_idle([IdleEvidence(booking.id, start, _now())])
            made.append(booking.id)
        return made

    def act(self, store: BookingStore, number: int, chance: random.Random, given: Any) -> Iterator[tuple[str, Any]]:
        if number % 2:
            yield "free", store.apply_idle
            return
        booking = given[number // 2 % len(given)]
        if chance.random() < 0.5:
            yield "begin", lambda: store.mark_active(booking)
        else:
            yield "see", lambda: store.record_idle([IdleEvidence(booking, _now(), _now())])

    def judge(self, place: Place, given: Any) -> list[str]:
        in_use: dict[str, str] = {}
        found = []
        fresh = int(_now().timestamp()) - 60
        for booking, what, since in place.sql("SELECT booking, what, since FROM race_notes ORDER BY number"):
            if what == "active" or (what == "evidence" and since > fresh):
                in_use.setdefault(booking, what)
            elif what in ("released", "no_show") and booking in in_use:
                found.append(f"{booking} was freed ({what}) after it was seen in use ({in_use[booking]})")
        return found


class Waitlist(Race):
    """A GPU for which three requests are waiting becomes free while all clients try to book it."""

    def begin(self, place: Place, admin: BookingStore) -> None:
        admin.set_rules(Rules(furthest_days=None))

    def prepare(self, place: Place, admin: BookingStore, turn: int) -> Any:
        place.sql("UPDATE waitlist SET state = 'withdrawn' WHERE state = 'waiting'")
        gpu, start = GPUS[turn % len(GPUS)], _now() + timedelta(days=1) + 4 * HOUR * turn
        held = admin.book(Draft("held", (gpu,), start, start + 2 * HOUR, "UTC"))
        wish = Wish(1, 2 * HOUR, start, latest=start + 2 * HOUR, gpus=(gpu,))
        for person in random.Random(turn).sample(PERSONS, len(PERSONS)):
            with closing(place.open(person)) as store:
                store.wait(wish, f"{person} waits")
        return held.id, gpu, start, turn

    def act(self, store: BookingStore, number: int, chance: random.Random, given: Any) -> Iterator[tuple[str, Any]]:
        held, gpu, start, turn = given
        if number == PERSONS.index(ADMIN):
            if turn % 2:
                yield "cancel", lambda: store.cancel(held)
            else:
                yield "move", lambda: store.change(held, start=start + 2 * HOUR, end=start + 3 * HOUR)
        for _ in range(3):
            yield "take", lambda: store.book(Draft("taken", (gpu,), start, start + 2 * HOUR, "UTC"))
            yield "serve", store.serve_waiting

    def judge(self, place: Place, given: Any) -> list[str]:
        _, gpu, start, _ = given
        in_order = place.sql(
            "SELECT id, owner, state, booking_id FROM waitlist WHERE state <> 'withdrawn' "
            f"AND wish LIKE '%{start:%Y-%m-%dT%H:%M:%S}%' ORDER BY created, id"
        )
        has = place.sql(
            "SELECT b.id, b.owner, b.title FROM bookings b JOIN booking_gpus g ON g.booking_id = b.id "
            f"WHERE g.live AND g.gpu = '{gpu}' AND {place.seconds('b.starts')} = {int(start.timestamp())}"
        )
        found = overlaps(place)
        if len(in_order) != len(PERSONS):
            return [*found, f"{len(in_order)} of {len(PERSONS)} are left in the waitlist"]
        first = in_order[0]
        if [row[:2] for row in has] != [(first[3], first[1])] or first[2] != "booked":
            found.append(f"{first[1]} waited first and is {first[2]}; the place has {has}")
        found += [f"{one[1]} waits behind, and is {one[2]}" for one in in_order[1:] if one[2] != "waiting"]
        return found


RACES: Sequence[type[Race]] = (Clashes, Quotas, IdleRelease, Waitlist)

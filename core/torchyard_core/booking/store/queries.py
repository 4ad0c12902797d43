"""Read-only queries of the bookings database."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from hashlib import sha256
from itertools import groupby
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, Select, and_, func, select

import torchyard_core.booking.store.tables as tables
from torchyard_core.booking.change_history import Change, Noted, changes_of
from torchyard_core.booking.errors import Refused, StoreUnreadable
from torchyard_core.booking.intervals import Interval
from torchyard_core.booking.model import Booking, Changes, Login, Position, Series, Slot, State, rfc3339
from torchyard_core.booking.rules.length_limits import check_length
from torchyard_core.booking.rules.quota import gpu_hours
from torchyard_core.booking.rules.search_limits import Allowance, closed_starts, taken_or_closed, within_rules
from torchyard_core.booking.rules.team_rules import Rules
from torchyard_core.booking.search.infeasibility import why_never
from torchyard_core.booking.search.slot_search import Busy, Fit, Wish, find_with, used_until
from torchyard_core.booking.store.change_feed import changed_since, position
from torchyard_core.booking.store.gap_queries import busy_intervals
from torchyard_core.booking.store.store_session import StoreSession
from torchyard_core.booking.time_parser import zone_of
from torchyard_core.booking.zone_weeks import by_week
from torchyard_core.next_steps import ListBookings

_SNAPSHOT_VERSION = 1
_SNAPSHOT_FIELDS = ("id", "owner", "title", "gpus", "start", "end", "state", "run_id", "stop_at_end")
_SNAPSHOT_FRESH_S = 3600
"""Maximum age in seconds of a calendar snapshot that agents enforce."""


@dataclass
class BookingQueries:
    """Reads bookings, slots, rules and logins. Methods with a `connection` use the caller's transaction."""

    _session: StoreSession

    def now(self) -> datetime:
        """Returns the current time by the calendar's clock; see `StoreSession.now`."""
        with self._session.transaction() as connection:
            return self._session.now(connection)

    def slots(self) -> tuple[Slot, ...]:
        """Returns all slots in the calendar. Desktops add slots when they check hosts."""
        with self._session.transaction() as connection:
            return self.load_slots(connection)

    def load_slots(self, connection: Connection, among: Sequence[str] = ()) -> tuple[Slot, ...]:
        """Returns the slots whose IDs are in `among`, or all slots if one of these IDs is unknown."""
        chosen = select(tables.gpus)
        rows = connection.execute(chosen.where(tables.gpus.c.id.in_(among)) if among else chosen).all()
        if among and len(rows) < len(among):
            rows = connection.execute(chosen).all()
        return tuple(sorted((Slot(*row) for row in rows), key=Slot.sort_key))

    def bookings(
        self, since: datetime, until: datetime, *, owner: str | None = None, live: bool = False
    ) -> tuple[Booking, ...]:
        """Returns the bookings that overlap the time from `since` to `until`, ordered by start.

        With `live`, only bookings that hold their GPUs are returned.
        """
        table = tables.bookings
        which = [table.c.starts < until, table.c.ends > since]
        if owner is not None:
            which.append(table.c.owner == owner)
        if live:
            which.append(table.c.state.in_(_LIVE))
        with self._session.transaction() as connection:
            return self.load_bookings(connection, select(table).where(*which))

    def position(self) -> Position:
        """Returns the last position in the change log.

        A caller reads the position before it reads bookings, and later passes the position to `changes`.
        """
        with self._session.transaction() as connection:
            return position(connection)

    def changes(self, since: Position) -> Changes | None:
        """Returns the bookings that changed after a position; None if all bookings have to be read again."""
        with self._session.transaction() as connection:
            found = changed_since(connection, since)
            if found is None:
                return None
            last, ids = found
            if not ids:
                return Changes(last, (), frozenset())
            there = self.load_bookings(connection, select(tables.bookings).where(tables.bookings.c.id.in_(ids)))
            return Changes(last, there, ids - {one.id for one in there})

    def bookings_around(self, now: datetime, until: datetime) -> tuple[Booking, ...]:
        """Returns the current live booking of each GPU, and the next one that begins before `until`."""
        of, lanes, on = tables.booking_gpus, tables.gpus, tables.booking_gpus.alias("on_lane")
        of_lane = and_(on.c.live, on.c.gpu == lanes.c.id)
        starts = [
            select(func.max(on.c.starts)).where(of_lane, on.c.starts <= now),
            select(func.min(on.c.starts)).where(of_lane, on.c.starts > now, on.c.starts < until),
        ]
        ids: set[str] = set()
        with self._session.transaction() as connection:
            for start in starts:
                # Without MATERIALIZED, SQLite would read all live rows instead of two for each GPU.
                at = select(lanes.c.id.label("gpu"), start.scalar_subquery().label("starts")).cte("at")
                at = at.prefix_with("MATERIALIZED")
                begins = and_(of.c.live, of.c.gpu == at.c.gpu, of.c.starts == at.c.starts, of.c.ends > now)
                ids |= set(connection.execute(select(of.c.booking_id).join_from(at, of, begins)).scalars())
            return self.load_bookings(connection, select(tables.bookings).where(tables.bookings.c.id.in_(ids)))

    def booking(self, booking_id: str) -> Booking:
        """Returns a booking. Raises Refused for an unknown ID."""
        with self._session.transaction() as connection:
            return self.load_booking(connection, booking_id)

    def load_booking(self, connection: Connection, booking_id: str) -> Booking:
        found = self.load_bookings(connection, select(tables.bookings).where(tables.bookings.c.id == booking_id))
        if not found:
            raise Refused(f"there is no booking `{booking_id}`", code="no_such_booking", hint=ListBookings())
        return found[0]

    def history(self, booking_id: str) -> tuple[Change, ...]:
        """Returns the changes to a booking, oldest first.

        Changes that were made by an old version of Torchyard, which kept no history, are missing.
        """
        with self._session.transaction() as connection:
            return self.load_history(connection, booking_id)

    def load_history(self, connection: Connection, booking_id: str) -> tuple[Change, ...]:
        """Does the same as `history`, within the caller's transaction."""
        table = tables.booking_history
        rows = connection.execute(select(table).where(table.c.booking_id == booking_id).order_by(table.c.id)).all()
        noted = []
        for row in self._session.readable(rows, lambda row: f"the entry {row.id} in the history of {booking_id}"):
            try:
                before, after = (json.loads(one) if one else None for one in (row.before, row.after))
                noted.append(Noted(row.at, row.step, row.person, row.desktop, before, after))
            except ValueError:
                self._session.skip(f"the entry {row.id} in the history of {booking_id}")
        return changes_of(noted)

    def bookings_named(self, beginning: str) -> tuple[Booking, ...]:
        """Returns up to 6 bookings, past or future, whose IDs begin with `beginning`."""
        return self._some(tables.bookings.c.id.startswith(beginning, autoescape=True), 6)

    def bookings_near(self, booking_id: str) -> tuple[Booking, ...]:
        """Returns up to 200 bookings whose IDs begin or end like a mistyped ID, for suggestions."""
        part = len(booking_id) // 3
        if part < 2:
            return ()
        table = tables.bookings
        head, tail = booking_id[:part].lower(), booking_id[-part:].lower()
        return self._some(
            table.c.id.startswith(head, autoescape=True) | table.c.id.endswith(tail, autoescape=True), 200
        )

    def _some(self, which: ColumnElement[bool], limit: int) -> tuple[Booking, ...]:
        table = tables.bookings
        with self._session.transaction() as connection:
            ids = connection.execute(select(table.c.id).where(which).limit(limit)).scalars().all()
            return self.load_bookings(connection, select(table).where(table.c.id.in_(ids)))

    def series(self, series_id: str) -> tuple[Series, tuple[Booking, ...]]:
        """Returns a series and its bookings.

        Raises Refused for an unknown ID, and StoreUnreadable for an invalid row.
        """
        table = tables.series
        with self._session.transaction() as connection:
            row = connection.execute(select(table).where(table.c.id == series_id)).first()
            if row is None:
                raise Refused(f"there is no series `{series_id}`", code="no_such_booking")
            if not self._session.readable([row], lambda row: f"the series {row.id} of {row.owner}"):
                raise StoreUnreadable(self._session.place, f"a time of the series {series_id}")
            of_it = select(tables.bookings).where(tables.bookings.c.series_id == series_id)
            return Series(*row), self.load_bookings(connection, of_it)

    def load_bookings(self, connection: Connection, chosen: Select[Any]) -> tuple[Booking, ...]:
        rows = connection.execute(chosen.order_by(tables.bookings.c.starts, tables.bookings.c.id)).all()
        if not rows:
            return ()
        of = tables.booking_gpus
        groups: dict[str, list[str]] = defaultdict(list)
        if len(rows) == 1:
            which = of.c.booking_id == rows[0].id
        else:
            which = of.c.booking_id.in_(chosen.with_only_columns(tables.bookings.c.id))
        for booking_id, gpu in connection.execute(select(of.c.booking_id, of.c.gpu).where(which)):
            groups[booking_id].append(gpu)
        found = []
        for row in self._session.readable(rows, lambda row: f"the booking {row.id} of {row.owner}"):
            try:
                zone_of(row.zone)
                found.append(_booking_of(row, groups[row.id]))
            except (ValueError, TypeError, Refused):
                self._session.skip(f"the booking {row.id} of {row.owner}")
        return tuple(found)

    def busy(self, since: datetime, until: datetime, gpus: Iterable[str] | None = None) -> dict[str, list[Interval]]:
        """Returns the booked intervals of each GPU that overlap the time from `since` to `until`."""
        with self._session.transaction() as connection:
            return self.load_busy(connection, since, until, gpus)

    def load_busy(
        self, connection: Connection, since: datetime, until: datetime, gpus: Iterable[str] | None = None
    ) -> dict[str, list[Interval]]:
        of = tables.booking_gpus
        which = and_(of.c.live, of.c.starts < until, of.c.ends > since)
        if gpus is not None:
            which = and_(which, of.c.gpu.in_(list(gpus)))
        busy: dict[str, list[Interval]] = defaultdict(list)
        rows = connection.execute(select(of.c.gpu, of.c.starts, of.c.ends, of.c.booking_id).where(which)).all()
        for gpu, starts, ends, _ in self._session.readable(
            rows, lambda row: f"{row.gpu} of the booking {row.booking_id}"
        ):
            busy[gpu].append(Interval(starts, ends))
        return dict(busy)

    def find(self, wish: Wish, limit: int = 5, zone: str = "", in_use: Collection[str] = ()) -> tuple[Fit, ...]:
        """Returns the earliest matches for a search request that the rules allow the user to book.

        The result is empty if bookings prevent all matches.

        Args:
            wish: The search request.
            limit: The maximum number of matches.
            zone: The time zone for times in a refusal. Defaults to the rules' zone.
            in_use: The GPUs that are now in use without a booking. They count as taken for the usual length of a
                booking.

        Raises:
            Refused: The rules forbid the requested length, or the request can never be fulfilled.
        """
        with self._session.transaction() as connection:
            self.check_length(connection, wish)
            if not (fits := self.find_in(connection, wish, limit, self._session.person, zone, in_use=in_use)):
                self.check_feasible(connection, wish, zone)
            return fits

    def load_gpus(self, connection: Connection) -> tuple[Slot, ...]:
        """Returns the slots that are not nodes of a cluster. The waitlist does not book such nodes."""
        return tuple(slot for slot in self.load_slots(connection) if not slot.node)

    def check_length(self, connection: Connection, wish: Wish) -> None:
        now = self._session.now(connection)
        if refused := check_length(Interval(now, now + wish.length), self.load_rules(connection), now):
            raise refused

    def check_feasible(self, connection: Connection, wish: Wish, zone: str) -> None:
        rules = self.load_rules(connection)
        allowance = self._allowance(connection, wish, self._session.person, rules, zone)
        if refused := why_never(wish, self.load_slots(connection), rules, self._session.person, allowance):
            raise refused

    def find_in(
        self,
        connection: Connection,
        wish: Wish,
        limit: int,
        person: str,
        zone: str,
        except_booking: str | None = None,
        in_use: Collection[str] = (),
    ) -> tuple[Fit, ...]:
        rules = self.load_rules(connection)
        allowance = self._allowance(connection, wish, person, rules, zone, except_booking)
        wish = within_rules(wish, rules, allowance.now)
        slots = [slot for slot in self.load_slots(connection) if wish.takes(slot)]
        used = Interval(allowance.now, used_until(allowance.now))

        def busy_in(since: datetime, until: datetime) -> Busy:
            booked = busy_intervals(connection, [slot.id for slot in slots], since, until, wish.length)
            busy = {**booked, **{gpu: [*booked.get(gpu, ()), used] for gpu in in_use}}
            return taken_or_closed(busy, slots, Interval(since, until), rules, person)

        return find_with(wish, slots, busy_in, limit, closed_starts(wish, slots, rules, person, allowance))

    def _allowance(
        self,
        connection: Connection,
        wish: Wish,
        person: str,
        rules: Rules,
        zone: str,
        except_booking: str | None = None,
    ) -> Allowance:
        """Returns the values for a quota check, with the person's GPU-hours in the weeks of the search."""
        now = self._session.now(connection)
        allowed = within_rules(wish, rules, now)
        around = Interval(allowed.earliest, allowed.latest or allowed.earliest)
        return Allowance(self.load_hours(connection, person, around, rules, except_booking), now, zone or rules.zone)

    def load_hours(
        self, connection: Connection, owner: str, around: Interval, rules: Rules, except_booking: str | None = None
    ) -> Mapping[datetime, float]:
        """Returns the GPU-hours of the owner's bookings in and around the weeks of the interval.

        Keys are the starts of weeks.

        Returns an empty dictionary if the owner has no quota, or if the interval is empty or longer than 400 days.
        """
        if rules.quota_of(owner) is None or around.is_empty or around.duration > timedelta(days=400):
            return {}
        weeks = by_week(around, rules.zone)
        table = tables.bookings
        first, last = min(weeks), max(weeks) + timedelta(days=8)
        which = (table.c.owner == owner, table.c.ends > first, table.c.starts < last)
        bookings = self.load_bookings(connection, select(table).where(*which))
        return gpu_hours((one for one in bookings if one.id != except_booking), rules.zone)

    def rules(self) -> Rules:
        """Returns the team's rules, or the default rules if the calendar has none."""
        with self._session.transaction() as connection:
            return self.load_rules(connection)

    def load_rules(self, connection: Connection) -> Rules:
        body: str | None = connection.execute(select(tables.rules.c.body)).scalar()
        try:
            return Rules.from_json(json.loads(body)) if body else Rules()
        except (ValueError, TypeError, AttributeError) as error:
            raise StoreUnreadable(self._session.place, f"the rules ({error})") from None

    def logins(self) -> tuple[Login, ...]:
        """Returns the entries that assign UNIX user names on hosts to team members."""
        with self._session.transaction() as connection:
            return tuple(Login(*row) for row in connection.execute(select(tables.logins)).all())

    def snapshot(self, days: float = 3) -> dict[str, Any]:
        """Returns the calendar of the coming days for agents.

        Each desktop sends this snapshot to the hosts to which it is connected.
        """
        now = self.now()
        until = now + timedelta(days=days)
        bookings = self.bookings(now, until, live=True)
        return agent_snapshot(bookings, self.logins(), self.rules(), self._session.person, now, until)

    def snapshot_revision(self, now: datetime) -> str:
        """Returns a hash that changes whenever a booking, a rule or a login in `snapshot()` changes.

        Read the revision before the snapshot; the snapshot is then at least as new. The revision also changes each
        hour, because the period that the snapshot covers moves on.
        """
        with self._session.transaction() as connection:
            last, rules = position(connection), self.load_rules(connection)
            logins = sorted(tuple(row) for row in connection.execute(select(tables.logins)))
        content = [self._session.person, f"{now:%Y-%m-%dT%H}", last.seq, last.token, rules.to_json(), logins]
        return sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()

    def count(self) -> int:
        """Returns the number of all bookings, including released and cancelled bookings."""
        with self._session.transaction() as connection:
            found: int = connection.execute(select(func.count()).select_from(tables.bookings)).scalar_one()
        return found


_LIVE: Sequence[str] = tuple(str(state) for state in State if state.is_live)


def _booking_of(row: Row[Any], gpus: list[str]) -> Booking:
    values = row._asdict()
    start, end, state = values.pop("starts"), values.pop("ends"), State(values.pop("state"))
    return Booking(gpus=tuple(sorted(gpus)), start=start, end=end, state=state, **values)


def agent_snapshot(
    bookings: Iterable[Booking], logins: Iterable[Login], rules: Rules, person: str, taken: datetime, until: datetime
) -> dict[str, Any]:
    """Returns the snapshot for agents as JSON.

    The snapshot contains the live bookings by start time (without their purposes), the rules of idle release and
    enforcement, and the team member to whom each login belongs, by host pattern and user name.
    """
    live = [one for one in bookings if one.is_live and one.end > taken and one.start < until]
    live.sort(key=lambda one: (one.start, one.id))
    by_login = sorted(logins, key=lambda one: (one.host_pattern, one.user, one.person))
    return {
        "version": _SNAPSHOT_VERSION,
        "taken": rfc3339(taken),
        "fresh_s": _SNAPSHOT_FRESH_S,
        "from": rfc3339(taken),
        "until": rfc3339(until),
        "person": person,
        "idle_release_min": rules.idle_release_min,
        "bookings": [one.to_json(_SNAPSHOT_FIELDS) for one in live],
        "enforcement": [asdict(one) for one in rules.enforcement],
        "logins": [
            {"host": host, "user": user, "persons": [one.person for one in group]}
            for (host, user), group in groupby(by_login, key=lambda one: (one.host_pattern, one.user))
        ],
    }

"""What a store knows, as values: each method is one short transaction."""

from __future__ import annotations

import json
import logging
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import Connection, Engine, Row, Select, and_, func, select, text

import torchyard_core.booking.store.tables as tables
from torchyard_core.booking.change_history import Change, Noted, changes_of
from torchyard_core.booking.errors import Refused, StoreUnreadable
from torchyard_core.booking.intervals import Interval
from torchyard_core.booking.model import (
    Booking,
    Changes,
    IdleEvidence,
    Login,
    Position,
    Series,
    Slot,
    State,
    Use,
    whole_seconds,
)
from torchyard_core.booking.rules.allowed_times import Allowance, closed_starts, taken_or_closed, within_rules
from torchyard_core.booking.rules.length_limits import check_length
from torchyard_core.booking.rules.quota import gpu_hours
from torchyard_core.booking.rules.team_rules import Rules
from torchyard_core.booking.search.infeasibility import why_never
from torchyard_core.booking.search.slot_search import Busy, Fit, Wish, find_with
from torchyard_core.booking.store.change_feed import changed_since, position
from torchyard_core.booking.store.engine import close_engine, place_of, transaction
from torchyard_core.booking.store.gap_queries import too_busy
from torchyard_core.booking.sync.agent_snapshot import agent_snapshot
from torchyard_core.booking.time_parser import zone_of
from torchyard_core.booking.usage_report import By, UsageRow, usage
from torchyard_core.booking.waitlist import Waiting, wish_from_json
from torchyard_core.booking.zone_weeks import by_week

_log = logging.getLogger(__name__)
Clock = Callable[[], datetime]
CLOCK_TOLERANCE_S = 120.0


def system_clock() -> datetime:
    return datetime.now(UTC)


class Reading:
    """The reading half of a store. May be used from any thread."""

    def __init__(
        self, engine: Engine, person: str, is_admin: bool, clock: Clock = system_clock, *, own_time: bool = False
    ):
        self._engine = engine
        self._clock = clock
        self._own_time = own_time or engine.dialect.name == "sqlite"
        self.person = person
        """Who asks: the database role, else the name in the settings."""
        self.is_admin = is_admin
        """May change everybody's bookings, and the rules. Always in a private file."""
        self._served: deque[Booking] = deque()
        """Made for those who waited as this store let something go, and not yet handed out."""
        self.unreadable: set[str] = set()
        """Rows that were skipped, as they cannot be understood: named once at the end of a command."""

    @property
    def is_private(self) -> bool:
        """Whether nobody else sees it: a file on this computer."""
        return self._engine.dialect.name == "sqlite"

    @property
    def place(self) -> str:
        return place_of(self._engine.url)

    def _skip(self, what: str) -> None:
        _log.info("skipped, as it cannot be read: %s", what)
        self.unreadable.add(what)

    def _readable(self, rows: Iterable[Any], what: Callable[[Any], str]) -> list[Any]:
        """Rows whose times are times; the others are skipped, and named by `what`."""
        found = []
        for row in rows:
            if any(value is tables.JUNK for value in row):
                self._skip(what(row))
            else:
                found.append(row)
        return found

    def close(self) -> None:
        """Lets go of every connection."""
        close_engine(self._engine)

    def now(self) -> datetime:
        """By the database's clock, which all desktops share; by this computer's for a file."""
        with transaction(self._engine) as connection:
            return self._now(connection)

    def _now(self, connection: Connection) -> datetime:
        if self._own_time:
            return whole_seconds(self._clock())
        found: datetime = connection.execute(text("SELECT clock_timestamp()")).scalar_one()
        return whole_seconds(found)

    def slots(self) -> tuple[Slot, ...]:
        """The catalogue: every GPU that a desktop has seen."""
        with transaction(self._engine) as connection:
            return self._slots(connection)

    def _slots(self, connection: Connection, among: Sequence[str] = ()) -> tuple[Slot, ...]:
        """All, or only those named, where all of these are known."""
        chosen = select(tables.gpus)
        rows = connection.execute(chosen.where(tables.gpus.c.id.in_(among)) if among else chosen).all()
        if among and len(rows) < len(among):
            rows = connection.execute(chosen).all()
        return tuple(sorted((Slot(*row) for row in rows), key=Slot.sort_key))

    def bookings(
        self, since: datetime, until: datetime, *, owner: str | None = None, live: bool = False
    ) -> tuple[Booking, ...]:
        """Those that touch the time, by start; `live` leaves out what was released, cancelled or not used."""
        table = tables.bookings
        which = [table.c.starts < until, table.c.ends > since]
        if owner is not None:
            which.append(table.c.owner == owner)
        if live:
            which.append(table.c.state.in_(_LIVE))
        with transaction(self._engine) as connection:
            return self._bookings(connection, select(table).where(*which))

    def position(self) -> Position:
        """Where the log of changes ends now: what is read afterwards is followed from there by `changes`."""
        with transaction(self._engine) as connection:
            return position(connection)

    def changes(self, since: Position) -> Changes | None:
        """What has changed since; None where the reader has to read everything anew: too much has changed, or the log
        does not know that position (a restored backup, another database)."""
        with transaction(self._engine) as connection:
            found = changed_since(connection, since)
            if found is None:
                return None
            last, ids = found
            if not ids:
                return Changes(last, (), frozenset())
            there = self._bookings(connection, select(tables.bookings).where(tables.bookings.c.id.in_(ids)))
            return Changes(last, there, ids - {one.id for one in there})

    def bookings_around(self, now: datetime, until: datetime) -> tuple[Booking, ...]:
        """Of each GPU the live booking of now, and the next one that begins before `until`."""
        of, lanes, on = tables.booking_gpus, tables.gpus, tables.booking_gpus.alias("on_lane")
        of_lane = and_(on.c.live, on.c.gpu == lanes.c.id)
        starts = [
            select(func.max(on.c.starts)).where(of_lane, on.c.starts <= now),
            select(func.min(on.c.starts)).where(of_lane, on.c.starts > now, on.c.starts < until),
        ]
        ids: set[str] = set()
        with transaction(self._engine) as connection:
            for start in starts:
                # Materialized: SQLite would look at every live row instead of two for each GPU.
                at = select(lanes.c.id.label("gpu"), start.scalar_subquery().label("starts")).cte("at")
                at = at.prefix_with("MATERIALIZED")
                begins = and_(of.c.live, of.c.gpu == at.c.gpu, of.c.starts == at.c.starts, of.c.ends > now)
                ids |= set(connection.execute(select(of.c.booking_id).join_from(at, of, begins)).scalars())
            return self._bookings(connection, select(tables.bookings).where(tables.bookings.c.id.in_(ids)))

    def booking(self, booking_id: str) -> Booking:
        """Raises Refused where there is none."""
        with transaction(self._engine) as connection:
            return self._booking(connection, booking_id)

    def _booking(self, connection: Connection, booking_id: str) -> Booking:
        found = self._bookings(connection, select(tables.bookings).where(tables.bookings.c.id == booking_id))
        if not found:
            raise Refused(
                f"there is no booking `{booking_id}`", code="no_such_booking", hint="See `torchyard bookings list`."
            )
        return found[0]

    def history(self, booking_id: str) -> tuple[Change, ...]:
        """Who changed a booking when, from what to what: the oldest first. Of those made by an older Torchyard what
        came since."""
        table = tables.booking_history
        chosen = select(table).where(table.c.booking_id == booking_id).order_by(table.c.id)
        with transaction(self._engine) as connection:
            rows = connection.execute(chosen).all()
        noted = []
        for row in self._readable(rows, lambda row: f"the entry {row.id} in the history of {booking_id}"):
            try:
                before, after = (json.loads(one) if one else None for one in (row.before, row.after))
                noted.append(Noted(row.at, row.step, row.person, row.desktop, before, after))
            except ValueError:
                self._skip(f"the entry {row.id} in the history of {booking_id}")
        return changes_of(noted)

    def bookings_named(self, beginning: str, limit: int = 6) -> tuple[Booking, ...]:
        """Those of any time whose IDs begin so."""
        table = tables.bookings
        chosen = select(table).where(table.c.id.startswith(beginning, autoescape=True))
        with transaction(self._engine) as connection:
            ids = connection.execute(chosen.with_only_columns(table.c.id).limit(limit)).scalars().all()
            return self._bookings(connection, select(table).where(table.c.id.in_(ids)))

    def bookings_near(self, booking_id: str, limit: int = 200) -> tuple[Booking, ...]:
        """Some whose IDs begin or end as a mistyped one does: one of them may be meant."""
        part = len(booking_id) // 3
        if part < 2:
            return ()
        table = tables.bookings
        head, tail = booking_id[:part].lower(), booking_id[-part:].lower()
        alike = table.c.id.startswith(head, autoescape=True) | table.c.id.endswith(tail, autoescape=True)
        with transaction(self._engine) as connection:
            ids = connection.execute(select(table.c.id).where(alike).limit(limit)).scalars().all()
            return self._bookings(connection, select(table).where(table.c.id.in_(ids)))

    def series(self, series_id: str) -> tuple[Series, tuple[Booking, ...]]:
        """A series and its bookings. Raises Refused where there is none."""
        table = tables.series
        with transaction(self._engine) as connection:
            row = connection.execute(select(table).where(table.c.id == series_id)).first()
            if row is None:
                raise Refused(f"there is no series `{series_id}`", code="no_such_booking")
            if not self._readable([row], lambda row: f"the series {row.id} of {row.owner}"):
                raise StoreUnreadable(self.place, f"a time of the series {series_id}")
            of_it = select(tables.bookings).where(tables.bookings.c.series_id == series_id)
            return Series(*row), self._bookings(connection, of_it)

    def _bookings(self, connection: Connection, chosen: Select[Any]) -> tuple[Booking, ...]:
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
        for row in self._readable(rows, lambda row: f"the booking {row.id} of {row.owner}"):
            try:
                zone_of(row.zone)
                found.append(_booking(row, groups[row.id]))
            except (ValueError, TypeError, Refused):
                self._skip(f"the booking {row.id} of {row.owner}")
        return tuple(found)

    def busy(self, since: datetime, until: datetime, gpus: Iterable[str] | None = None) -> dict[str, list[Interval]]:
        """What is booked of each GPU in that time."""
        with transaction(self._engine) as connection:
            return self._busy(connection, since, until, gpus)

    def _busy(
        self, connection: Connection, since: datetime, until: datetime, gpus: Iterable[str] | None = None
    ) -> dict[str, list[Interval]]:
        of = tables.booking_gpus
        which = and_(of.c.live, of.c.starts < until, of.c.ends > since)
        if gpus is not None:
            which = and_(which, of.c.gpu.in_(list(gpus)))
        busy: dict[str, list[Interval]] = defaultdict(list)
        rows = connection.execute(select(of.c.gpu, of.c.starts, of.c.ends, of.c.booking_id).where(which)).all()
        for gpu, starts, ends, _ in self._readable(rows, lambda row: f"{row.gpu} of the booking {row.booking_id}"):
            busy[gpu].append(Interval(starts, ends))
        return dict(busy)

    def find(self, wish: Wish, limit: int = 5, zone: str = "") -> tuple[Fit, ...]:
        """The first places that are free for the wish, and that the rules let who asks book, none of them in the past.
        `zone`: of the times in a refusal; the rules' by default.

        Empty while bookings are in the way. Raises Refused where nothing can be booked whoever lets go of what.
        """
        with transaction(self._engine) as connection:
            self._refuse_length(connection, wish)
            if not (fits := self._find(connection, wish, limit, self.person, zone)):
                self._refuse_hopeless(connection, wish, zone)
            return fits

    def _refuse_length(self, connection: Connection, wish: Wish) -> None:
        now = self._now(connection)
        if refused := check_length(Interval(now, now + wish.length), self._rules(connection), now):
            raise refused

    def _refuse_hopeless(self, connection: Connection, wish: Wish, zone: str) -> None:
        rules = self._rules(connection)
        allowance = self._allowance(connection, wish, self.person, rules, zone)
        if refused := why_never(wish, self._slots(connection), rules, self.person, allowance):
            raise refused

    def _find(
        self, connection: Connection, wish: Wish, limit: int, person: str, zone: str, except_booking: str | None = None
    ) -> tuple[Fit, ...]:
        rules = self._rules(connection)
        allowance = self._allowance(connection, wish, person, rules, zone, except_booking)
        wish = within_rules(wish, rules, allowance.now)
        slots = [slot for slot in self._slots(connection) if wish.takes(slot)]

        def busy_in(since: datetime, until: datetime) -> Busy:
            busy = too_busy(connection, [slot.id for slot in slots], since, until, wish.length)
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
        """What the person's quota goes by, for all the time in which the wish may be booked."""
        now = self._now(connection)
        allowed = within_rules(wish, rules, now)
        around = Interval(allowed.earliest, allowed.latest or allowed.earliest)
        return Allowance(self._hours(connection, person, around, rules, except_booking), now, zone or rules.zone)

    def _hours(
        self, connection: Connection, owner: str, around: Interval, rules: Rules, except_booking: str | None = None
    ) -> Mapping[datetime, float]:
        """The owner's GPU-hours in the weeks that the interval touches."""
        if rules.quota_of(owner) is None or around.is_empty or around.duration > timedelta(days=400):
            return {}
        weeks = by_week(around, rules.zone)
        table = tables.bookings
        first, last = min(weeks), max(weeks) + timedelta(days=8)
        which = (table.c.owner == owner, table.c.ends > first, table.c.starts < last)
        bookings = self._bookings(connection, select(table).where(*which))
        return gpu_hours((one for one in bookings if one.id != except_booking), rules.zone)

    def rules(self) -> Rules:
        """The team's, else the defaults."""
        with transaction(self._engine) as connection:
            return self._rules(connection)

    def _rules(self, connection: Connection) -> Rules:
        body: str | None = connection.execute(select(tables.rules.c.body)).scalar()
        try:
            return Rules.from_json(json.loads(body)) if body else Rules()
        except (ValueError, TypeError, AttributeError) as error:
            raise StoreUnreadable(self.place, f"the rules ({error})") from None

    def logins(self) -> tuple[Login, ...]:
        """Which UNIX users stand for which persons."""
        with transaction(self._engine) as connection:
            return tuple(Login(*row) for row in connection.execute(select(tables.logins)).all())

    def waiting(self, *, everything: bool = False) -> tuple[Waiting, ...]:
        """The waitlist in order; with `everything` also who was served or has left."""
        with transaction(self._engine) as connection:
            return self._waiting(connection, everything=everything)

    def _waiting(self, connection: Connection, *, everything: bool = False) -> tuple[Waiting, ...]:
        table = tables.waitlist
        chosen = select(table).order_by(table.c.created, table.c.id)
        rows = connection.execute(chosen if everything else chosen.where(table.c.state == "waiting")).all()
        found = []
        for row in self._readable(rows, lambda row: f"the entry {row.id} of {row.owner} in the waitlist"):
            try:
                wish = wish_from_json(json.loads(row.wish))
                zone_of(row.zone)
            except (ValueError, RecursionError, Refused):
                self._skip(f"the entry {row.id} of {row.owner} in the waitlist")
                continue
            of_row = (row.id, row.owner, row.title, wish, row.zone, row.created, row.state, row.booking_id)
            found.append(Waiting(*of_row))
        return tuple(found)

    def uses(self, since: datetime, until: datetime) -> tuple[Use, ...]:
        """When GPUs were in use, and by whom, as agents saw it."""
        table = tables.uses
        chosen = select(table).where(table.c.starts < until, table.c.ends > since).order_by(table.c.starts)
        with transaction(self._engine) as connection:
            rows = self._readable(connection.execute(chosen).all(), lambda row: f"the use of {row.gpu} by {row.person}")
        return tuple(Use(row.gpu, row.host, row.person, row.starts, row.ends, row.run_id) for row in rows)

    def idle_evidence(self) -> tuple[IdleEvidence, ...]:
        """Of bookings that have not ended."""
        with transaction(self._engine) as connection:
            return self._idle_evidence(connection)

    def _idle_evidence(self, connection: Connection) -> tuple[IdleEvidence, ...]:
        table, of = tables.idle_evidence, tables.bookings
        # Not a join: SQLite would begin it with the many bookings to come.
        to_come = select(of.c.id).where(of.c.id == table.c.booking_id, of.c.ends > self._now(connection)).exists()
        chosen = select(table.c.booking_id, table.c.idle_since, table.c.seen_at, table.c.reporter).where(to_come)
        rows = self._readable(
            connection.execute(chosen).all(), lambda row: f"the evidence of the booking {row.booking_id}"
        )
        return tuple(IdleEvidence(*row) for row in rows)

    def usage(self, since: datetime, until: datetime, by: By = "person", zone: str = "UTC") -> tuple[UsageRow, ...]:
        """GPU-hours booked, used and idle."""
        bookings, uses = self.bookings(since, until), self.uses(since, until)
        return usage(bookings, uses, self.slots(), since, until, self.now(), by, zone)

    def snapshot(self, days: float = 3) -> dict[str, Any]:
        """What agents are handed: see `torchyard_core.booking.sync.agent_snapshot`."""
        now = self.now()
        until = now + timedelta(days=days)
        bookings = self.bookings(now, until, live=True)
        return agent_snapshot(bookings, self.logins(), self.rules(), self.person, now, until)

    def count(self) -> int:
        """Of all bookings, those let go included."""
        with transaction(self._engine) as connection:
            found: int = connection.execute(select(func.count()).select_from(tables.bookings)).scalar_one()
        return found


_LIVE: Sequence[str] = tuple(str(state) for state in State if state.is_live)


def _booking(row: Row[Any], gpus: list[str]) -> Booking:
    return Booking(
        id=row.id,
        owner=row.owner,
        title=row.title,
        purpose=row.purpose,
        gpus=tuple(sorted(gpus)),
        start=row.starts,
        end=row.ends,
        zone=row.zone,
        state=State(row.state),
        created=row.created,
        changed=row.changed,
        series_id=row.series_id,
        run_id=row.run_id,
        stop_at_end=row.stop_at_end,
        let_go_at=row.let_go_at,
        uid=row.uid,
    )

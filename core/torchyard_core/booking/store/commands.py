"""Making and changing bookings: the rules and the look for clashes, then the rows, all in one transaction.

The look is for the answer (whose booking, when); what makes double bookings impossible is the trigger or constraint.
In PostgreSQL the GPUs of a group are locked in one order first, so that transactions wait and never deadlock.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, TypeVar

from sqlalchemy import Connection, and_, exc, insert, or_, select, text, update

from torchyard_core.booking.errors import Clash, NoRights, Refused, StoreAway, StoreUnreadable
from torchyard_core.booking.intervals import Interval
from torchyard_core.booking.model import Booking, Draft, State, is_cpu_id, normal
from torchyard_core.booking.recurrence import occurrences
from torchyard_core.booking.rules.allowed_times import LONGEST_SEARCH
from torchyard_core.booking.rules.team_rules import Rules, by_week, changeable, check, check_change, shape
from torchyard_core.booking.search.slot_search import HORIZON
from torchyard_core.booking.store import tables
from torchyard_core.booking.store.conflict_queries import Clashes
from torchyard_core.booking.store.engine import Overlap, transaction
from torchyard_core.booking.store.queries import CLOCK_TOLERANCE_S
from torchyard_core.booking.time_parser import to_utc, zone_of
from torchyard_core.booking.waitlist import Waiting, in_order
from torchyard_core.formatting import wall_clock

TRIES = 5
SERIES_WITHOUT_LIMIT = timedelta(days=366)
"""How far a series without an end goes where no rule says how far ahead may be booked."""
Result = TypeVar("Result")


@dataclass(frozen=True)
class Missed:
    """An occurrence of a series that was not booked, and why."""

    interval: Interval
    why: Refused


@dataclass(frozen=True)
class SeriesBooked:
    """What became of a series: `series_id` is empty where nothing was booked."""

    series_id: str
    booked: tuple[Booking, ...]
    missed: tuple[Missed, ...]


@dataclass(frozen=True)
class Previewed:
    """What would become of an imported draft: new, there (imported before), clash, or refused."""

    draft: Draft
    verdict: str
    why: Refused | None = None


class Writing(Clashes):
    """The half of a store that makes, changes and lets go of bookings."""

    def book(self, draft: Draft) -> Booking:
        """Books all of it or nothing. Raises Clash with the answer, Refused for a rule, NoRights, StoreAway."""
        draft = normal(draft)

        def attempt(connection: Connection) -> Booking:
            now, rules = self._ready(connection, self._owner(draft), draft.gpus)
            self._check(connection, draft, now, rules)
            return self._insert(connection, [draft], now, None)[0]

        return self._settled(attempt)

    def book_series(self, draft: Draft, rule: str, *, free_ones: bool = False) -> SeriesBooked:
        """Books every occurrence of the rule, or nothing; with `free_ones` those that can be, and lists the others.

        A rule with neither COUNT nor UNTIL is booked as far ahead as the rules of the team allow, at least its first.
        Raises Clash or Refused of the first that cannot be booked (without `free_ones`), or of the rule itself.
        """
        draft = normal(draft)

        def attempt(connection: Connection) -> SeriesBooked:
            now, rules = self._ready(connection, self._owner(draft), draft.gpus)
            if refused := shape(draft, self._slots(connection)):
                raise refused
            furthest = draft.start + SERIES_WITHOUT_LIMIT
            if rules.furthest_days is not None:
                furthest = max(draft.start, now + timedelta(days=rules.furthest_days) - draft.interval.duration)
            times = occurrences(rule, draft.start, draft.end, draft.zone, furthest)
            wanted = [replace(draft, start=one.start, end=one.end) for one in times]
            free, missed = self._sorted_out(connection, wanted, now, rules, free_ones)
            if not free:
                return SeriesBooked("", (), tuple(missed))
            series_id = _new_id()
            row = {
                "id": series_id,
                "owner": self._owner(draft),
                "title": draft.title,
                "rule": rule,
                "starts": draft.start,
                "ends": draft.end,
                "zone": draft.zone,
                "created": now,
            }
            connection.execute(insert(tables.series), [row])
            return SeriesBooked(series_id, tuple(self._insert(connection, free, now, series_id)), tuple(missed))

        return self._settled(attempt)

    def _sorted_out(
        self, connection: Connection, wanted: Sequence[Draft], now: datetime, rules: Rules, free_ones: bool
    ) -> tuple[list[Draft], list[Missed]]:
        """Those of a series that can be booked, each also counting towards the quota of the next, and the others."""
        free: list[Draft] = []
        missed: list[Missed] = []
        for number, one in enumerate(wanted, 1):
            try:
                self._check(connection, one, now, rules, together_with=free)
            except Refused as refused:
                if not free_ones:
                    raise _of_series(refused, one, number, len(wanted)) from None
                missed.append(Missed(one.interval, refused))
            else:
                free.append(one)
        return free, missed

    def change(
        self,
        booking_id: str,
        *,
        start: datetime | None = None,
        end: datetime | None = None,
        gpus: Iterable[str] | None = None,
        title: str | None = None,
        purpose: str | None = None,
        stop_at_end: bool | None = None,
        run_id: str | None = None,
    ) -> Booking:
        """Moves, resizes or renames a booking, whole or not at all; a running one is only shortened or extended."""

        def attempt(connection: Connection) -> Booking:
            booking = self._own(connection, booking_id)
            wanted = normal(
                Draft(
                    title=booking.title if title is None else title,
                    gpus=booking.gpus if gpus is None else tuple(gpus),
                    start=start or booking.start,
                    end=end or booking.end,
                    zone=booking.zone,
                    purpose=booking.purpose if purpose is None else purpose,
                    owner=booking.owner,
                    run_id=run_id or booking.run_id,
                    stop_at_end=booking.stop_at_end if stop_at_end is None else stop_at_end,
                    uid=booking.uid,
                )
            )
            now, rules = self._ready(connection, booking.owner, {*booking.gpus, *wanted.gpus})
            hours = self._hours(connection, booking.owner, wanted.interval, rules, except_booking=booking.id)
            if refused := check_change(booking, wanted, rules, now, hours, self._slots(connection)):
                raise refused
            self._refuse_clash(connection, wanted, except_booking=booking.id)
            return self._rewrite(connection, booking, wanted, now)

        return self._settled(attempt, except_booking=booking_id, frees=True)

    def change_series(
        self,
        booking_id: str,
        *,
        everything: bool = False,
        start: datetime | None = None,
        end: datetime | None = None,
        gpus: Iterable[str] | None = None,
        title: str | None = None,
        purpose: str | None = None,
        stop_at_end: bool | None = None,
    ) -> tuple[Booking, ...]:
        """Changes a booking and those that follow it in its series as `change` does one, or `everything` of the series
        that has not begun: all of them or nothing. The others move by as much on the wall clock, and last as long.
        """
        chosen_gpus = None if gpus is None else tuple(gpus)

        def attempt(connection: Connection) -> tuple[Booking, ...]:
            this = self._booking(connection, booking_id)
            of_it = select(tables.bookings).where(tables.bookings.c.series_id == this.series_id)
            now = self._now(connection)
            which = [
                one
                for one in self._bookings(connection, of_it)
                if one.is_live and one.start > now and (everything or one.start >= this.start)
            ]
            if this.series_id is None or not which:
                raise Refused(f"{booking_id} is of no series with bookings to come", code="no_series")
            zone = zone_of(this.zone)
            moved = (start or this.start).astimezone(zone).replace(tzinfo=None) - this.start.astimezone(zone).replace(
                tzinfo=None
            )
            length = (end or this.end) - (start or this.start)

            def wanted_of(one: Booking) -> Draft:
                local = one.start.astimezone(zone).replace(tzinfo=None) + moved
                begin = one.start if not moved else to_utc(local, this.zone)
                return normal(
                    Draft(
                        title=one.title if title is None else title,
                        gpus=one.gpus if chosen_gpus is None else chosen_gpus,
                        start=begin,
                        end=one.end if start is None and end is None else begin + length,
                        zone=one.zone,
                        purpose=one.purpose if purpose is None else purpose,
                        owner=one.owner,
                        run_id=one.run_id,
                        stop_at_end=one.stop_at_end if stop_at_end is None else stop_at_end,
                        uid=one.uid,
                    )
                )

            which = [self._own(connection, one.id) for one in sorted(which, key=lambda one: one.id)]
            gpus_of_all = {gpu for one in which for gpu in one.gpus} | set(chosen_gpus or ())
            now, rules = self._ready(connection, this.owner, gpus_of_all)
            slots = self._slots(connection)
            changed: list[Booking] = []
            # In this order none meets one of the same series that has not moved yet.
            for one in sorted(which, key=lambda one: one.start, reverse=moved > timedelta()):
                wanted = wanted_of(one)
                hours = self._hours(connection, this.owner, wanted.interval, rules, except_booking=one.id)
                try:
                    if refused := check_change(one, wanted, rules, now, hours, slots):
                        raise refused
                    self._refuse_clash(connection, wanted, except_booking=one.id)
                except Refused as refused:
                    when = wall_clock(one.start, one.zone, "%a %Y-%m-%d %H:%M")
                    message = f"nothing was changed: the booking of {when} cannot be changed so, as {refused.message}"
                    raise Refused(message, code=refused.code, hint=refused.hint) from None
                changed.append(self._rewrite(connection, one, wanted, now))
            return tuple(sorted(changed, key=lambda one: one.start))

        return self._settled(attempt, frees=True)

    def release(self, booking_id: str) -> Booking:
        """Lets a running booking's GPUs go now; one that has not begun is cancelled."""
        return self._let_go(booking_id)

    def cancel(self, booking_id: str) -> Booking:
        """Takes back a booking; one that has begun is released, as its past stays."""
        return self._let_go(booking_id)

    def cancel_series(self, series_id: str, since: datetime | None = None) -> tuple[Booking, ...]:
        """Cancels what of a series has not begun, and begins at `since` or later."""
        now = max(self.now(), since - timedelta(seconds=1)) if since is not None else self.now()
        _, of_it = self.series(series_id)
        return tuple(self.cancel(one.id) for one in of_it if one.is_live and one.start > now)

    def mark_active(self, booking_id: str) -> Booking:
        """A run of it began, or its GPUs were seen in use."""

        def attempt(connection: Connection) -> Booking:
            booking = self._own(connection, booking_id)
            now = self._now(connection)
            if refused := changeable(booking, now):
                raise refused
            return self._set(connection, booking, state=State.ACTIVE, changed=now)

        return self._settled(attempt)

    def refusal(self, draft: Draft, *, except_booking: str | None = None) -> Refused | None:
        """What `book`, or `change` of that booking, would refuse. Writes nothing: for a tooltip while dragging."""
        draft = normal(draft)
        with transaction(self._engine) as connection:
            rules, now = self._rules(connection), self._now(connection)
            try:
                if except_booking is None:
                    self._check(connection, draft, now, rules)
                else:
                    booking = self._own(connection, except_booking, writes=False)
                    hours = self._hours(connection, booking.owner, draft.interval, rules, except_booking)
                    if refused := check_change(booking, draft, rules, now, hours, self._slots(connection)):
                        return refused
                    self._refuse_clash(connection, draft, except_booking)
            except (Refused, NoRights) as refused:
                if isinstance(refused, Clash):
                    refused = self._with_nearest(connection, refused, except_booking)
                return refused if isinstance(refused, Refused) else Refused(refused.message, code=refused.code)
        return None

    def preview(self, drafts: Iterable[Draft]) -> tuple[Previewed, ...]:
        """What would become of imported drafts. Writes nothing."""
        found: list[Previewed] = []
        table = tables.bookings
        for draft in map(normal, drafts):
            if draft.uid:
                # What was made here has no other UID than the one that `export_ics` gives it.
                known = or_(table.c.uid == draft.uid, table.c.id == draft.uid.removesuffix("@torchyard"))
                same = and_(known, table.c.starts == draft.start, table.c.owner == self._owner(draft))
                with transaction(self._engine) as connection:
                    there = connection.execute(select(table.c.id).where(same, table.c.state != "cancelled")).first()
                if there is not None:
                    found.append(Previewed(draft, "there"))
                    continue
            why = self.refusal(draft)
            found.append(Previewed(draft, "clash" if isinstance(why, Clash) else "refused" if why else "new", why))
        return tuple(found)

    # What the above stand on.

    def _settled(
        self, attempt: Callable[[Connection], Result], *, except_booking: str | None = None, frees: bool = False
    ) -> Result:
        """Runs a writing transaction, anew where another was quicker; a clash gets the places nearby.
        `except_booking`: the one that is changed, which counts towards no quota. `frees`: it may make places free,
        which the waitlist gets in the same transaction."""
        for _ in range(TRIES):
            try:
                with transaction(self._engine, writes=True) as connection:
                    result = attempt(connection)
                    served = self._serve_waiting(connection) if frees else ()
                self._served.extend(served)
                return result
            except Overlap:
                continue
            except Clash as clash:
                with transaction(self._engine) as connection:
                    raise self._with_nearest(connection, clash, except_booking) from None
        raise StoreAway(f"{self.place} is too busy: others were quicker {TRIES} times", hint="Try again.")

    def _ready(self, connection: Connection, owner: str, gpus: Iterable[str]) -> tuple[datetime, Rules]:
        """Locks what will be written, then tells the time and the rules. Raises Refused where clocks disagree."""
        self._lock(connection, f"person {owner}", *(f"gpu {gpu}" for gpu in gpus))
        now = self._now(connection)
        ahead = (self._clock() - now).total_seconds()
        if abs(ahead) > CLOCK_TOLERANCE_S:
            way = "ahead of" if ahead > 0 else "behind"
            raise Refused(
                f"this computer's clock is {abs(ahead) / 60:.0f} min {way} the one of {self.place}; nothing was booked",
                code="clock",
                hint="Set it right (`timedatectl set-ntp true`), and try again.",
            )
        return now, self._rules(connection)

    def _lock(self, connection: Connection, *names: str) -> None:
        """Until the transaction's end, in one order, so that transactions wait and never deadlock. SQLite has one
        writing transaction at a time."""
        if not self.is_private:
            keys = sorted({_lock_key(name) for name in names})
            connection.execute(
                text("SELECT pg_advisory_xact_lock(key) FROM unnest(CAST(:keys AS bigint[])) AS key"), {"keys": keys}
            )

    def _owner(self, draft: Draft) -> str:
        if draft.owner not in (None, self.person) and not self.is_admin:
            raise NoRights(
                f"only an admin can book for {draft.owner}", hint="Leave the owner out to book for yourself."
            )
        return draft.owner or self.person

    def _own(self, connection: Connection, booking_id: str, *, writes: bool = True) -> Booking:
        if writes:
            self._lock(connection, f"booking {booking_id}")
        booking = self._booking(connection, booking_id)
        if booking.owner != self.person and not self.is_admin:
            raise Refused(
                f"{booking.title!r} is {booking.owner}'s booking: only {booking.owner} or an admin can change it",
                code="not_yours",
                hint=f"Ask {booking.owner}, or join the waitlist.",
            )
        return booking

    def _check(
        self, connection: Connection, draft: Draft, now: datetime, rules: Rules, together_with: Sequence[Draft] = ()
    ) -> None:
        owner = self._owner(draft)
        hours = dict(self._hours(connection, owner, draft.interval, rules))
        for other in together_with:
            gpus = sum(not is_cpu_id(gpu) for gpu in other.gpus)
            for week, seconds in by_week(other.interval, rules.zone).items():
                hours[week] = hours.get(week, 0.0) + seconds * gpus / 3600
        if refused := check(draft, rules, now, owner, hours, self._slots(connection, draft.gpus)):
            raise refused
        self._refuse_clash(connection, draft)

    def _insert(
        self, connection: Connection, drafts: Sequence[Draft], now: datetime, series_id: str | None
    ) -> list[Booking]:
        made = [
            Booking(
                id=_new_id(),
                owner=self._owner(draft),
                title=draft.title,
                purpose=draft.purpose,
                gpus=draft.gpus,
                start=draft.start,
                end=draft.end,
                zone=draft.zone,
                state=State.BOOKED,
                created=now,
                changed=now,
                series_id=series_id,
                run_id=draft.run_id,
                stop_at_end=draft.stop_at_end,
                uid=draft.uid,
            )
            for draft in drafts
        ]
        insert_rows(connection, made)
        return made

    def _rewrite(self, connection: Connection, booking: Booking, wanted: Draft, now: datetime) -> Booking:
        regrouped = wanted.gpus != booking.gpus
        of = tables.booking_gpus
        if regrouped:
            connection.execute(of.delete().where(of.c.booking_id == booking.id))
        changed = self._set(
            connection,
            booking,
            title=wanted.title,
            purpose=wanted.purpose,
            start=wanted.start,
            end=wanted.end,
            run_id=wanted.run_id,
            stop_at_end=wanted.stop_at_end,
            changed=now,
        )
        if regrouped:
            changed = replace(changed, gpus=wanted.gpus)
            connection.execute(insert(of), _gpu_rows([changed]))
        return changed

    def _let_go(self, booking_id: str) -> Booking:
        def attempt(connection: Connection) -> Booking:
            booking = self._own(connection, booking_id)
            now = self._now(connection)
            if refused := changeable(booking, now):
                raise refused
            final = State.RELEASED if booking.start <= now else State.CANCELLED
            return self._set(connection, booking, state=final, let_go_at=max(now, booking.start), changed=now)

        return self._settled(attempt, frees=True)

    def _serve_waiting(self, connection: Connection) -> tuple[Booking, ...]:
        """Books what is free for those who wait, in order. Before the commit that frees a place no other transaction
        can book it."""
        if not self._waiting(connection):
            return ()
        self._lock(connection, "waitlist")
        now, waiting = self._now(connection), self._waiting(connection)
        try:
            rules = self._rules(connection)
        except StoreUnreadable:
            return ()  # which keeps no booking from being let go
        until = max((one.wish.latest or max(now, one.wish.earliest) + HORIZON for one in waiting), default=now)
        around = Interval(now, min(until, now + LONGEST_SEARCH))
        hours = {one.owner: self._hours(connection, one.owner, around, rules) for one in waiting}
        slots, busy = self._slots(connection), self._busy(connection, now, until)
        served = []
        for one, fit in in_order(waiting, slots, busy, now, rules, hours):
            draft = normal(Draft(one.title, fit.gpus, fit.start, fit.end, one.zone, owner=one.owner))
            nested = connection.begin_nested()
            try:
                served.append(self._serve(connection, one, draft, now, rules))
                nested.commit()
            except Refused:
                nested.rollback()  # the entry stays in the list
            except exc.DBAPIError as error:
                if getattr(error.orig, "sqlstate", None) not in _REFUSALS:
                    raise
                nested.rollback()
        return tuple(served)

    def _serve(self, connection: Connection, one: Waiting, draft: Draft, now: datetime, rules: Rules) -> Booking:
        """Books for who waits. In PostgreSQL a function does it: a member has no right to book for another."""
        if not self.is_private:
            booking_id = _new_id()
            values: dict[str, Any] = {"waiting": one.id, "booking": booking_id, "slots": list(draft.gpus)}
            values |= {"starts": draft.start, "ends": draft.end}
            if not connection.execute(_SERVE, values).scalar():
                raise Refused("the entry does not wait any more", code="no_such_booking")
            return self._booking(connection, booking_id)
        self._check(connection, draft, now, rules)
        booking = self._insert(connection, [draft], now, None)[0]
        table = tables.waitlist
        changes = {"state": "booked", "booking_id": booking.id}
        connection.execute(update(table).where(table.c.id == one.id).values(changes))
        return booking

    def _set(self, connection: Connection, booking: Booking, **changes: Any) -> Booking:
        """Writes changed fields. Raises NoRights where the database's policy hides the row from writing."""
        changed = replace(booking, **changes)
        columns = {_COLUMNS.get(name, name): value for name, value in changes.items()}
        table = tables.bookings
        if connection.execute(update(table).where(table.c.id == booking.id).values(columns)).rowcount != 1:
            raise NoRights(f"your role may not change {booking.owner}'s bookings", hint=f"Ask {booking.owner}.")
        return changed


_SERVE = text("SELECT torchyard.serve(:waiting, :booking, CAST(:slots AS text[]), :starts, :ends)")
_REFUSALS = ("23514", "23P01")
"""Of PostgreSQL: a rule, and a GPU that is taken."""
_COLUMNS = {"start": "starts", "end": "ends"}


def insert_rows(connection: Connection, made: Sequence[Booking]) -> None:
    """Bookings and their GPUs, sorted by GPU. Raises Overlap on the way out of the transaction."""
    connection.execute(insert(tables.bookings), [booking_row(booking) for booking in made])
    connection.execute(insert(tables.booking_gpus), _gpu_rows(made))


def booking_row(booking: Booking) -> dict[str, Any]:
    values = {_COLUMNS.get(name, name): value for name, value in booking.__dict__.items() if name != "gpus"}
    return {**values, "state": str(booking.state)}


def _gpu_rows(made: Sequence[Booking]) -> list[dict[str, Any]]:
    rows = [
        {
            "booking_id": booking.id,
            "gpu": gpu,
            "owner": booking.owner,
            "starts": booking.start,
            "ends": booking.end,
            "live": booking.is_live,
        }
        for booking in made
        for gpu in booking.gpus
    ]
    return sorted(rows, key=lambda row: (row["gpu"], row["starts"]))


def _of_series(refused: Refused, wanted: Draft, number: int, count: int) -> Refused:
    """Which of the series it is that cannot be booked, and why. A clash says so by its times."""
    if isinstance(refused, Clash) or count == 1:
        return refused
    when = wall_clock(wanted.start, wanted.zone, "%a %Y-%m-%d %H:%M")
    hint = "End the series earlier, or book the free ones only (--free-ones)."
    return Refused(
        f"nothing was booked: number {number} of the {count} bookings of the series, on {when}, is refused, as "
        f"{refused.message.rstrip('.')}",
        code=refused.code,
        hint=f"{refused.hint} {hint}".strip(),
    )


def _new_id() -> str:
    """Short enough to type: 2^50, of one team."""
    return f"b{secrets.token_hex(6)}"


def _lock_key(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big", signed=True)

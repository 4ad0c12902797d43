"""Commands that book, change and release GPUs, and change the slots, rules and logins of the team."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime, timedelta, tzinfo
from typing import Any

from sqlalchemy import Connection, and_, delete, insert, or_, select

import torchyard_core.booking.store.tables as tables
from torchyard_core.booking.errors import PermissionDenied, Refused
from torchyard_core.booking.intervals import Interval
from torchyard_core.booking.model import Booking, Draft, Login, Series, Slot, State, normalized
from torchyard_core.booking.recurrence import occurrences
from torchyard_core.booking.rules.refusal import check_draft, check_not_ended
from torchyard_core.booking.rules.team_rules import Rules
from torchyard_core.booking.search.conflict import Clash
from torchyard_core.booking.store.booking_writer import BookingWriter, new_id, row_of
from torchyard_core.booking.store.conflict_queries import ConflictQueries
from torchyard_core.booking.store.queries import BookingQueries
from torchyard_core.booking.store.store_session import StoreSession, upsert
from torchyard_core.booking.store.write_transactions import WriteTransactions
from torchyard_core.booking.time_parser import to_utc, zone_of
from torchyard_core.formatting import wall_clock
from torchyard_core.next_steps import joined

SERIES_WITHOUT_LIMIT = timedelta(days=366)
"""Length of a series that has no end, if no rule limits the horizon."""

_USERS_FIELDS = ("title", "purpose", "gpus", "start", "end", "stop_at_end", "is_live")
"""Attributes of a booking that users set. A launch that uses the booking changes other attributes."""


@dataclass(frozen=True)
class SkippedOccurrence:
    """An occurrence of a series that was not booked, with the reason."""

    interval: Interval
    why: Refused


@dataclass(frozen=True)
class SeriesBooked:
    """The result of booking a series. `series_id` is empty if nothing was booked."""

    series_id: str
    booked: tuple[Booking, ...]
    missed: tuple[SkippedOccurrence, ...]


@dataclass(frozen=True)
class ImportVerdict:
    """The result of checking an imported draft.

    `verdict` is `new` (the draft can be booked), `there` (the draft was already imported), `clash` or `refused`.
    """

    draft: Draft
    verdict: str
    why: Refused | None = None


@dataclass
class BookingCommands:
    """Changes bookings, and the slots, rules and logins of the team."""

    _session: StoreSession
    _queries: BookingQueries
    _conflicts: ConflictQueries
    _writer: BookingWriter
    _transactions: WriteTransactions

    def book(self, draft: Draft) -> Booking:
        """Books all GPUs of the draft.

        If one of them cannot be booked, books none and raises Clash, Refused, PermissionDenied or StoreUnavailable.
        """
        draft = normalized(draft)

        def attempt(connection: Connection) -> Booking:
            now, rules = self._writer.begin(connection, self._writer.owner_of(draft), draft.gpus)
            self._writer.check(connection, draft, now, rules)
            return self._writer.insert(connection, [draft], now, None)[0]

        return self._transactions.run(attempt)

    def book_series(self, draft: Draft, rule: str, *, free_ones: bool = False) -> SeriesBooked:
        """Books all occurrences of an RRULE, or none.

        A rule with neither COUNT nor UNTIL is booked up to the horizon of the team's rules, or for SERIES_WITHOUT_LIMIT
        if there is no horizon. The start of the draft is always included.

        Args:
            draft: The booking whose start and length the rule repeats.
            rule: The RRULE.
            free_ones: Whether to book only the occurrences that can be booked, and to list the others in the result.

        Raises:
            Refused: The draft or the rule is invalid, or an occurrence cannot be booked and `free_ones` is false.
            PermissionDenied: A member books for another user.
        """
        draft = normalized(draft)

        def attempt(connection: Connection) -> SeriesBooked:
            now, rules = self._writer.begin(connection, self._writer.owner_of(draft), draft.gpus)
            if refused := check_draft(draft, self._queries.load_slots(connection)):
                raise refused
            furthest = draft.start + SERIES_WITHOUT_LIMIT
            if rules.furthest_days is not None:
                furthest = max(draft.start, now + timedelta(days=rules.furthest_days) - draft.interval.duration)
            times = occurrences(rule, draft.start, draft.end, draft.zone, furthest)
            wanted = [replace(draft, start=one.start, end=one.end) for one in times]
            free, missed = self._split_bookable(connection, wanted, now, rules, free_ones)
            if not free:
                return SeriesBooked("", (), tuple(missed))
            series_id = new_id()
            owner = self._writer.owner_of(draft)
            series = Series(series_id, owner, draft.title, rule, draft.start, draft.end, draft.zone, now)
            connection.execute(insert(tables.series), [row_of(series)])
            return SeriesBooked(series_id, tuple(self._writer.insert(connection, free, now, series_id)), tuple(missed))

        return self._transactions.run(attempt)

    def _split_bookable(
        self, connection: Connection, wanted: Sequence[Draft], now: datetime, rules: Rules, free_ones: bool
    ) -> tuple[list[Draft], list[SkippedOccurrence]]:
        """Returns the occurrences that can be booked, and the others.

        Each occurrence that can be booked counts towards the quota of the later ones.

        Raises the first refusal if `free_ones` is false.
        """
        free: list[Draft] = []
        missed: list[SkippedOccurrence] = []
        for number, one in enumerate(wanted, 1):
            try:
                self._writer.check(connection, one, now, rules, together_with=free)
            except Refused as refused:
                if not free_ones:
                    raise _name_occurrence(refused, one, number, len(wanted)) from None
                missed.append(SkippedOccurrence(one.interval, refused))
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
        expected: Booking | None = None,
    ) -> Booking:
        """Changes the given fields of a booking. The start and the GPUs of a running booking cannot be changed.

        Raises Refused if `expected` is given and differs from the booking in times, GPUs, title, purpose or settings.
        """

        def attempt(connection: Connection) -> Booking:
            booking = self._load_expected(connection, booking_id, expected)
            changes = {"start": start, "end": end, "gpus": gpus, "title": title, "purpose": purpose}
            wanted = _changed(booking, **changes, stop_at_end=stop_at_end, run_id=run_id)
            now, rules = self._writer.begin(connection, booking.owner, {*booking.gpus, *wanted.gpus})
            self._writer.check(connection, wanted, now, rules, booking=booking)
            return self._writer.rewrite(connection, booking, wanted, now)

        return self._transactions.run(attempt, except_booking=booking_id, frees=True)

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
        """Changes a booking and the later ones of its series; with `everything`, all future bookings of the series.

        Either all of these bookings are changed, or none. `start` and `end` apply to the booking with `booking_id`. If
        either is given, the other bookings are moved by the same amount of local time and get the same length.
        """
        chosen_gpus = None if gpus is None else tuple(gpus)

        def attempt(connection: Connection) -> tuple[Booking, ...]:
            this = self._queries.load_booking(connection, booking_id)
            of_it = select(tables.bookings).where(tables.bookings.c.series_id == this.series_id)
            now = self._session.now(connection)
            which = [
                one
                for one in self._queries.load_bookings(connection, of_it)
                if one.is_live and one.start > now and (everything or one.start >= this.start)
            ]
            if this.series_id is None or not which:
                raise Refused(f"{booking_id} is of no series with bookings to come", code="no_series")
            zone = zone_of(this.zone)
            moved = _wall_clock(start or this.start, zone) - _wall_clock(this.start, zone)
            length = (end or this.end) - (start or this.start)

            def wanted_of(one: Booking) -> Draft:
                begin = to_utc(_wall_clock(one.start, zone) + moved, this.zone) if moved else one.start
                finish = one.end if start is None and end is None else begin + length
                texts = {"title": title, "purpose": purpose, "stop_at_end": stop_at_end}
                return _changed(one, start=begin, end=finish, gpus=chosen_gpus, **texts)

            which = [self._writer.load_own(connection, one.id) for one in sorted(which, key=lambda one: one.id)]
            gpus_of_all = {gpu for one in which for gpu in one.gpus} | set(chosen_gpus or ())
            now, rules = self._writer.begin(connection, this.owner, gpus_of_all)
            changed: list[Booking] = []
            # If the bookings move to a later time, the last one is moved first. Otherwise a booking would be moved to
            # the time of the next one, which has not been moved yet.
            for one in sorted(which, key=lambda one: one.start, reverse=moved > timedelta()):
                wanted = wanted_of(one)
                try:
                    self._writer.check(connection, wanted, now, rules, booking=one)
                except Refused as refused:
                    when = wall_clock(one.start, one.zone, "%a %Y-%m-%d %H:%M")
                    message = f"nothing was changed: the booking of {when} cannot be changed so, as {refused.message}"
                    raise Refused(message, code=refused.code, hint=refused.advice) from None
                changed.append(self._writer.rewrite(connection, one, wanted, now))
            return tuple(sorted(changed, key=lambda one: one.start))

        return self._transactions.run(attempt, frees=True)

    def release(self, booking_id: str, *, expected: Booking | None = None) -> Booking:
        """Releases a running booking immediately, or cancels a future one. `expected` is as for `change`."""

        def attempt(connection: Connection) -> Booking:
            booking = self._load_expected(connection, booking_id, expected)
            now = self._session.now(connection)
            if refused := check_not_ended(booking, now):
                raise refused
            final = State.RELEASED if booking.start <= now else State.CANCELLED
            return self._writer.update(connection, booking, state=final, let_go_at=max(now, booking.start), changed=now)

        return self._transactions.run(attempt, frees=True)

    def cancel_series(self, series_id: str, since: datetime | None = None) -> tuple[Booking, ...]:
        """Cancels the future bookings of a series, or only those that begin at `since` or later."""
        now = max(self._queries.now(), since - timedelta(seconds=1)) if since is not None else self._queries.now()
        _, of_it = self._queries.series(series_id)
        return tuple(self.release(one.id) for one in of_it if one.is_live and one.start > now)

    def mark_active(self, booking_id: str) -> Booking:
        """Marks a booking as active because a run is launched on it."""

        def attempt(connection: Connection) -> Booking:
            booking = self._writer.load_own(connection, booking_id)
            now = self._session.now(connection)
            if refused := check_not_ended(booking, now):
                raise refused
            return self._writer.update(connection, booking, state=State.ACTIVE, changed=now)

        return self._transactions.run(attempt)

    def refusal(self, draft: Draft, *, except_booking: str | None = None) -> Refused | None:
        """Returns the reason why the draft cannot be booked, or None if it can be booked. Writes nothing.

        If `except_booking` is given, the result refers to changing this booking to the draft.
        """
        draft = normalized(draft)
        with self._session.transaction() as connection:
            rules, now = self._queries.load_rules(connection), self._session.now(connection)
            try:
                booking = (
                    None if except_booking is None else self._writer.load_own(connection, except_booking, writes=False)
                )
                self._writer.check(connection, draft, now, rules, booking=booking)
            except (Refused, PermissionDenied) as refused:
                if isinstance(refused, Clash):
                    refused = self._conflicts.with_nearest(connection, refused, except_booking)
                return refused if isinstance(refused, Refused) else Refused(refused.message, code=refused.code)
        return None

    def preview(self, drafts: Iterable[Draft]) -> tuple[ImportVerdict, ...]:
        """Returns whether each imported draft can be booked. Writes nothing."""
        found: list[ImportVerdict] = []
        table = tables.bookings
        for draft in map(normalized, drafts):
            if draft.uid:
                # A booking that was not imported has the UID that `export_ics` derives from its ID.
                known = or_(table.c.uid == draft.uid, table.c.id == draft.uid.removesuffix("@torchyard"))
                same = and_(known, table.c.starts == draft.start, table.c.owner == self._writer.owner_of(draft))
                with self._session.transaction() as connection:
                    there = connection.execute(select(table.c.id).where(same, table.c.state != "cancelled")).first()
                if there is not None:
                    found.append(ImportVerdict(draft, "there"))
                    continue
            why = self.refusal(draft)
            found.append(ImportVerdict(draft, "clash" if isinstance(why, Clash) else "refused" if why else "new", why))
        return tuple(found)

    def remember_slots(self, slots: Iterable[Slot]) -> None:
        """Adds the slots that a desktop has found to the calendar. No slots are removed.

        Only an admin's desktop updates known slots, since members must not rename or move a GPU that other users have
        booked.
        """
        known = {slot.id: slot for slot in self._queries.slots()}
        news = [
            slot for slot in slots if known.get(slot.id) != slot and (self._session.is_admin or slot.id not in known)
        ]
        rows = [
            {"id": slot.id, "host": slot.host, "number": slot.index, "model": slot.model, "memory_mb": slot.memory_mb}
            for slot in sorted(news, key=lambda slot: slot.id)
        ]
        if rows:
            changed = ("host", "number", "model", "memory_mb") if self._session.is_admin else ()
            with self._session.transaction(writes=True) as connection:
                upsert(connection, tables.gpus, rows, changed)

    def set_rules(self, rules: Rules) -> None:
        """Replaces the rules. Raises PermissionDenied for members, UsageError for invalid rules."""
        body = json.dumps(rules.to_json())
        Rules.from_json(json.loads(body))
        self._only_admins("the rules")
        with self._session.transaction(writes=True) as connection:
            upsert(connection, tables.rules, [{"id": 1, "body": body}], ("body",))

    def set_logins(self, logins: Iterable[Login]) -> None:
        """Replaces the entries that assign UNIX user names to team members. Raises PermissionDenied for members."""
        self._only_admins("the table of logins")
        rows = [{"host_pattern": one.host_pattern, "unix_user": one.user, "person": one.person} for one in set(logins)]
        with self._session.transaction(writes=True) as connection:
            connection.execute(delete(tables.logins))
            if rows:
                connection.execute(insert(tables.logins), rows)

    def _load_expected(self, connection: Connection, booking_id: str, expected: Booking | None) -> Booking:
        """Returns a booking that the user may change. Raises Refused if it differs from `expected`."""
        booking = self._writer.load_own(connection, booking_id)
        if expected is None or all(getattr(booking, name) == getattr(expected, name) for name in _USERS_FIELDS):
            return booking
        last = next(iter(reversed(self._queries.load_history(connection, booking_id))), None)
        verb = "changed" if booking.is_live else "cancelled" if booking.state is State.CANCELLED else "released"
        who = f" by {last.person}" if last is not None and last.person else ""
        when = wall_clock(booking.changed, booking.zone, "%a %Y-%m-%d %H:%M")
        raise Refused(f"“{booking.title}” was {verb}{who} on {when}, and stays as it is", code="changed_meanwhile")

    def _only_admins(self, what: str) -> None:
        if not self._session.is_admin:
            raise PermissionDenied(f"only an admin can change {what}", hint="Ask one of the team's admins.")


def _changed(booking: Booking, **changes: Any) -> Draft:
    """Returns a draft with the booking's fields and the given changes. A value of None leaves the field unchanged."""
    values = {one.name: getattr(booking, one.name) for one in fields(Draft)}
    return normalized(Draft(**values | {name: value for name, value in changes.items() if value is not None}))


def _wall_clock(moment: datetime, zone: tzinfo) -> datetime:
    return moment.astimezone(zone).replace(tzinfo=None)


def _name_occurrence(refused: Refused, wanted: Draft, number: int, count: int) -> Refused:
    """Adds the number and time of the occurrence to a refusal.

    A clash, which already contains the time, and the refusal of a series with only one occurrence are returned
    unchanged.
    """
    if isinstance(refused, Clash) or count == 1:
        return refused
    when = wall_clock(wanted.start, wanted.zone, "%a %Y-%m-%d %H:%M")
    hint = "End the series earlier, or book the free ones only (--free-ones)."
    return Refused(
        f"nothing was booked: number {number} of the {count} bookings of the series, on {when}, is refused, as "
        f"{refused.message.rstrip('.')}",
        code=refused.code,
        hint=joined(refused.advice, hint),
    )

"""Use and idleness of GPUs as observed by agents, and the release of idle bookings."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial

from sqlalchemy import Connection, select

import torchyard_core.booking.store.tables as tables
from torchyard_core.booking.model import Booking, IdleEvidence, State, Use, whole_seconds
from torchyard_core.booking.rules.idle_release import Verdict, verdict
from torchyard_core.booking.store.booking_writer import BookingWriter, row_of
from torchyard_core.booking.store.queries import BookingQueries
from torchyard_core.booking.store.store_session import StoreSession, upsert
from torchyard_core.booking.store.write_transactions import WriteTransactions
from torchyard_core.booking.usage_report import By, UsageRow, usage

_FREES = {Verdict.NO_SHOW: State.NO_SHOW, Verdict.RELEASE: State.RELEASED}


@dataclass
class UsageRecords:
    """Records use and idleness of GPUs, reports usage, and releases idle bookings."""

    _session: StoreSession
    _queries: BookingQueries
    _writer: BookingWriter
    _transactions: WriteTransactions

    def uses(self, since: datetime, until: datetime) -> tuple[Use, ...]:
        """Returns the periods in which GPUs were in use, as reported by agents, ordered by start."""
        table = tables.uses
        chosen = select(table).where(table.c.starts < until, table.c.ends > since).order_by(table.c.starts)
        with self._session.transaction() as connection:
            rows = self._session.readable(
                connection.execute(chosen).all(), lambda row: f"the use of {row.gpu} by {row.person}"
            )
        return tuple(Use(row.gpu, row.host, row.person, row.starts, row.ends, row.run_id) for row in rows)

    def idle_evidence(self) -> tuple[IdleEvidence, ...]:
        """Returns the evidence about bookings whose end is in the future."""
        with self._session.transaction() as connection:
            return self._load_idle_evidence(connection)

    def _load_idle_evidence(self, connection: Connection) -> tuple[IdleEvidence, ...]:
        table, of = tables.idle_evidence, tables.bookings
        # A join would make SQLite scan the many future bookings first.
        to_come = (
            select(of.c.id).where(of.c.id == table.c.booking_id, of.c.ends > self._session.now(connection)).exists()
        )
        chosen = select(table.c.booking_id, table.c.idle_since, table.c.seen_at, table.c.reporter).where(to_come)
        rows = self._session.readable(
            connection.execute(chosen).all(), lambda row: f"the evidence of the booking {row.booking_id}"
        )
        return tuple(IdleEvidence(*row) for row in rows)

    def usage(self, since: datetime, until: datetime, by: By = "person", zone: str = "UTC") -> tuple[UsageRow, ...]:
        """Returns booked, used and idle GPU-hours; see `usage_report.usage`."""
        bookings, uses = self._queries.bookings(since, until), self.uses(since, until)
        return usage(bookings, uses, self._queries.slots(), since, until, self._queries.now(), by, zone)

    def record_use(self, uses: Iterable[Use]) -> None:
        """Records use of GPUs. A record by the same reporter with the same GPU, start and person is updated."""
        exact = [replace(one, start=whole_seconds(one.start), end=whole_seconds(one.end)) for one in uses]
        rows = {(one.gpu, one.start, one.person): row_of(one) | {"reporter": self._session.person} for one in exact}
        if rows:
            with self._session.transaction(writes=True) as connection:
                upsert(connection, tables.uses, [rows[key] for key in sorted(rows)], ("ends", "host", "run_id"))

    def record_idle(self, evidence: Iterable[IdleEvidence]) -> None:
        """Records that booked GPUs were idle and that no live run held them.

        Members can report only on their own bookings; evidence about other bookings is ignored. Evidence of a reporter
        is never replaced by older evidence of the same reporter.
        """
        rows = {
            one.booking_id: one.__dict__
            | {"reporter": self._session.person}
            | {"idle_since": whole_seconds(one.idle_since), "seen_at": whole_seconds(one.seen_at)}
            for one in evidence
        }
        if rows:
            of = tables.bookings
            which = [of.c.id.in_(rows), *(() if self._session.is_admin else (of.c.owner == self._session.person,))]
            with self._session.transaction(writes=True) as connection:
                self._session.lock(connection, *(f"booking {key}" for key in rows))
                known = sorted(connection.execute(select(of.c.id).where(*which)).scalars())
                if known:
                    columns = ("idle_since", "seen_at")
                    upsert(connection, tables.idle_evidence, [rows[key] for key in known], columns, newest="seen_at")

    def apply_idle(self) -> tuple[Booking, ...]:
        """Releases running bookings that have been idle long enough. A member releases only their own bookings.

        Each booking is checked again under its lock, in the transaction that releases it, because a run may have begun
        in the meantime.
        """
        now = self._queries.now()
        rules, evidence = self._queries.rules(), self.idle_evidence()
        owner = None if self._session.is_admin else self._session.person
        idle = [
            booking.id
            for booking in self._queries.bookings(now, now + timedelta(seconds=1), owner=owner, live=True)
            if verdict(booking, evidence, rules, now).verdict in _FREES
        ]
        freed = [self._transactions.run(partial(self._free_if_idle, booking_id), frees=True) for booking_id in idle]
        return tuple(one for one in freed if one is not None)

    def _free_if_idle(self, booking_id: str, connection: Connection) -> Booking | None:
        booking = self._writer.load_own(connection, booking_id)
        now = self._session.now(connection)
        found = verdict(booking, self._load_idle_evidence(connection), self._queries.load_rules(connection), now)
        if found.verdict not in _FREES:
            return None
        # The booking ends now rather than at the time when its release was due, because its GPUs could not be booked
        # before.
        return self._writer.update(connection, booking, state=_FREES[found.verdict], let_go_at=now, changed=now)

    def soon_idle(self) -> tuple[tuple[Booking, datetime], ...]:
        """Returns the user's running bookings that will soon be released as idle, each with its release time."""
        now = self._queries.now()
        rules, evidence = self._queries.rules(), self.idle_evidence()
        mine = self._queries.bookings(now, now + timedelta(seconds=1), owner=self._session.person, live=True)
        found = [(booking, verdict(booking, evidence, rules, now)) for booking in mine]
        return tuple((booking, one.frees_at) for booking, one in found if one.verdict is Verdict.WARN and one.frees_at)

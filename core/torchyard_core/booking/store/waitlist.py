"""The waitlist of a store: requests that are fulfilled in order when GPUs become free."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, exc, insert, select, text, update

import torchyard_core.booking.store.tables as tables
from torchyard_core.booking.errors import Refused, StoreUnreadable
from torchyard_core.booking.intervals import Interval
from torchyard_core.booking.model import Booking, Draft, normalized
from torchyard_core.booking.rules.search_limits import LONGEST_SEARCH
from torchyard_core.booking.rules.team_rules import Rules
from torchyard_core.booking.search.slot_search import HORIZON, Wish
from torchyard_core.booking.store.booking_writer import BookingWriter, new_id
from torchyard_core.booking.store.queries import BookingQueries
from torchyard_core.booking.store.store_session import StoreSession
from torchyard_core.booking.time_parser import zone_of
from torchyard_core.booking.waitlist import Waiting, assign_places, wish_from_json, wish_to_json

_SERVE = text("SELECT torchyard.serve(:waiting, :booking, CAST(:slots AS text[]), :starts, :ends)")
_REFUSALS = ("23514", "23P01")
"""SQLSTATEs of PostgreSQL for a refusal by a rule and for a booked GPU."""


@dataclass
class Waitlist:
    """Reads, adds and withdraws entries of the waitlist, and books GPUs for them."""

    _session: StoreSession
    _queries: BookingQueries
    _writer: BookingWriter

    def waiting(self, *, everything: bool = False) -> tuple[Waiting, ...]:
        """Returns the waitlist, oldest entry first. With `everything`, booked and withdrawn entries are included."""
        with self._session.transaction() as connection:
            return self.load_waiting(connection, everything=everything)

    def load_waiting(self, connection: Connection, *, everything: bool = False) -> tuple[Waiting, ...]:
        table = tables.waitlist
        chosen = select(table).order_by(table.c.created, table.c.id)
        rows = connection.execute(chosen if everything else chosen.where(table.c.state == "waiting")).all()
        found = []
        for row in self._session.readable(rows, lambda row: f"the entry {row.id} of {row.owner} in the waitlist"):
            try:
                wish = wish_from_json(json.loads(row.wish))
                zone_of(row.zone)
            except (ValueError, RecursionError, Refused):
                self._session.skip(f"the entry {row.id} of {row.owner} in the waitlist")
                continue
            of_row = (row.id, row.owner, row.title, wish, row.zone, row.created, row.state, row.booking_id)
            found.append(Waiting(*of_row))
        return tuple(found)

    def wait(self, wish: Wish, title: str, zone: str = "UTC") -> Waiting:
        """Adds an entry at the end of the waitlist. Raises Refused for a request that can never be fulfilled."""
        if wish.count < 1 or wish.length < timedelta(minutes=1):
            raise Refused("the wish names no GPU, or no time", code="bad_wish", hint="Say how many, and for how long.")
        with self._session.transaction(writes=True) as connection:
            if any(slot.node and wish.takes(slot) for slot in self._queries.load_slots(connection)):
                raise Refused(
                    "nodes of a cluster have no waitlist here, because Slurm has a queue for them",
                    code="no_waitlist",
                    hint="Launch the run, which waits in the queue, or find a free time and book it.",
                )
            self._queries.check_length(connection, wish)
            self._queries.check_feasible(connection, wish, zone)
            one = Waiting(
                new_id(), self._session.person, title.strip() or "waiting", wish, zone, self._session.now(connection)
            )
            row = {**one.__dict__, "wish": json.dumps(wish_to_json(wish))}
            connection.execute(insert(tables.waitlist), [row])
        return one

    def stop_waiting(self, waiting_id: str) -> None:
        """Withdraws an entry.

        Raises Refused if the entry is not waiting, or if a member withdraws another user's entry.
        """
        table = tables.waitlist
        which = (table.c.id == waiting_id, table.c.state == "waiting")
        mine = () if self._session.is_admin else (table.c.owner == self._session.person,)
        with self._session.transaction(writes=True) as connection:
            if not connection.execute(update(table).where(*which, *mine).values(state="withdrawn")).rowcount:
                raise Refused(f"you are not waiting as `{waiting_id}`", code="no_such_booking")

    def serve(self, connection: Connection) -> tuple[Booking, ...]:
        """Books free GPUs for the entries in order. Returns the new bookings.

        Runs in the caller's transaction, which may just have released the GPUs.
        """
        if not self.load_waiting(connection):
            return ()
        self._session.lock(connection, "waitlist")
        now, waiting = self._session.now(connection), self.load_waiting(connection)
        try:
            rules = self._queries.load_rules(connection)
        except StoreUnreadable:
            return ()  # The waitlist cannot be processed without the rules, but bookings can still be released.
        until = max((one.wish.latest or max(now, one.wish.earliest) + HORIZON for one in waiting), default=now)
        around = Interval(now, min(until, now + LONGEST_SEARCH))
        hours = {one.owner: self._queries.load_hours(connection, one.owner, around, rules) for one in waiting}
        slots, busy = self._queries.load_gpus(connection), self._queries.load_busy(connection, now, until)
        served = []
        for one, fit in assign_places(waiting, slots, busy, now, rules, hours):
            draft = normalized(Draft(one.title, fit.gpus, fit.start, fit.end, one.zone, owner=one.owner))
            nested = connection.begin_nested()
            try:
                served.append(self._serve_entry(connection, one, draft, now, rules))
                nested.commit()
            except Refused:
                nested.rollback()  # The entry stays in the waitlist.
            except exc.DBAPIError as error:
                if getattr(error.orig, "sqlstate", None) not in _REFUSALS:
                    raise
                nested.rollback()
        return tuple(served)

    def _serve_entry(self, connection: Connection, one: Waiting, draft: Draft, now: datetime, rules: Rules) -> Booking:
        """Books GPUs for the entry's owner.

        In PostgreSQL, a database function makes the booking, since members may not book for other users.
        """
        if not self._session.is_private:
            booking_id = new_id()
            values: dict[str, Any] = {"waiting": one.id, "booking": booking_id, "slots": list(draft.gpus)}
            values |= {"starts": draft.start, "ends": draft.end}
            if not connection.execute(_SERVE, values).scalar():
                raise Refused("the entry does not wait any more", code="no_such_booking")
            return self._queries.load_booking(connection, booking_id)
        self._writer.check(connection, draft, now, rules)
        booking = self._writer.insert(connection, [draft], now, None)[0]
        table = tables.waitlist
        changes = {"state": "booked", "booking_id": booking.id}
        connection.execute(update(table).where(table.c.id == one.id).values(changes))
        return booking

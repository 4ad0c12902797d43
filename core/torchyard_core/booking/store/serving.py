"""What a team shares beside the bookings: catalogue, rules, logins, waitlist, evidence of use and of idleness."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, Table, delete, insert, update
from sqlalchemy.dialects import postgresql, sqlite

from torchyard_core.booking.find_slot import HORIZON, Wish
from torchyard_core.booking.idle import Verdict, verdict
from torchyard_core.booking.intervals import Interval
from torchyard_core.booking.model import Booking, Draft, IdleEvidence, Login, Slot, State, Use, normal, whole_seconds
from torchyard_core.booking.open_times import LONGEST_SEARCH
from torchyard_core.booking.refusals import NoRights, Refused
from torchyard_core.booking.rules import Rules
from torchyard_core.booking.store import tables
from torchyard_core.booking.store.engine import transaction
from torchyard_core.booking.store.writing import Writing, _new_id
from torchyard_core.booking.waitlist import Waiting, in_order, wish_to_json


class Serving(Writing):
    """The third part of a store."""

    def remember_slots(self, slots: Iterable[Slot]) -> None:
        """Adds GPUs that a desktop has found to the catalogue, and renews what it knows of others. None is removed."""
        known = {slot.id: slot for slot in self.slots()}
        news = [slot for slot in slots if known.get(slot.id) != slot]
        rows = [
            {"id": slot.id, "host": slot.host, "number": slot.index, "model": slot.model, "memory_mb": slot.memory_mb}
            for slot in sorted(news, key=lambda slot: slot.id)
        ]
        if rows:
            with transaction(self._engine, writes=True) as connection:
                upsert(connection, tables.gpus, rows, ("host", "number", "model", "memory_mb"))

    def set_rules(self, rules: Rules) -> None:
        """Raises NoRights for who is no admin, UsageError for rules that make no sense."""
        body = json.dumps(rules.to_json())
        Rules.from_json(json.loads(body))
        self._only_admins("the rules")
        with transaction(self._engine, writes=True) as connection:
            upsert(connection, tables.rules, [{"id": 1, "body": body}], ("body",))

    def set_logins(self, logins: Iterable[Login]) -> None:
        """Replaces the table of UNIX users. Raises NoRights for who is no admin."""
        self._only_admins("the table of logins")
        rows = [{"host_pattern": one.host_pattern, "unix_user": one.user, "person": one.person} for one in set(logins)]
        with transaction(self._engine, writes=True) as connection:
            connection.execute(delete(tables.logins))
            if rows:
                connection.execute(insert(tables.logins), rows)

    def _only_admins(self, what: str) -> None:
        if not self.is_admin:
            raise NoRights(f"only an admin can change {what}", hint="Ask one of the team's admins.")

    def wait(self, wish: Wish, title: str, zone: str = "UTC") -> Waiting:
        """Joins the waitlist, behind all who wait. Raises Refused for a wish that cannot be booked whoever lets go."""
        if wish.count < 1 or wish.length < timedelta(minutes=1):
            raise Refused("the wish names no GPU, or no time", code="bad_wish", hint="Say how many, and for how long.")
        with transaction(self._engine, writes=True) as connection:
            self._refuse_length(connection, wish)
            self._refuse_hopeless(connection, wish, zone)
            one = Waiting(_new_id(), self.person, title.strip() or "waiting", wish, zone, self._now(connection))
            row = {
                "id": one.id,
                "owner": one.owner,
                "title": one.title,
                "wish": json.dumps(wish_to_json(wish)),
                "zone": zone,
                "created": one.created,
                "state": "waiting",
                "booking_id": None,
            }
            connection.execute(insert(tables.waitlist), [row])
        return one

    def stop_waiting(self, waiting_id: str) -> None:
        """Leaves the waitlist. Raises Refused where one does not wait there."""
        table = tables.waitlist
        which = (table.c.id == waiting_id, table.c.state == "waiting")
        mine = () if self.is_admin else (table.c.owner == self.person,)
        with transaction(self._engine, writes=True) as connection:
            if not connection.execute(update(table).where(*which, *mine).values(state="withdrawn")).rowcount:
                raise Refused(f"you are not waiting as `{waiting_id}`", code="no_such_booking")

    def serve_waiting(self) -> tuple[Booking, ...]:
        """Books what is free now for those who wait, in order. A member's desktop books for its own person only, and
        leaves untouched what somebody earlier is to get."""
        now = self.now()
        waiting = self.waiting()
        if not waiting:
            return ()
        until = max(one.wish.latest or max(now, one.wish.earliest) + HORIZON for one in waiting)
        rules = self.rules()
        with transaction(self._engine) as connection:
            around = Interval(now, min(until, now + LONGEST_SEARCH))
            hours = {one.owner: self._hours(connection, one.owner, around, rules) for one in waiting}
        served: list[Booking] = []
        for one, fit in in_order(waiting, self.slots(), self.busy(now, until), now, rules, hours):
            if one.owner != self.person and not self.is_admin:
                continue
            draft = normal(Draft(one.title, fit.gpus, fit.start, fit.end, one.zone, owner=one.owner))
            try:
                served.append(self._serve(one, draft))
            except Refused:
                continue  # a rule holds for who waited too; it stays in the list
        return tuple(served)

    def _serve(self, one: Waiting, draft: Draft) -> Booking:
        table = tables.waitlist

        def attempt(connection: Connection) -> Booking:
            now, rules = self._ready(connection, self._owner(draft), draft.gpus)
            self._check(connection, draft, now, rules)
            booking = self._insert(connection, [draft], now, None)[0]
            which = (table.c.id == one.id, table.c.state == "waiting")
            changes = {"state": "booked", "booking_id": booking.id}
            if not connection.execute(update(table).where(*which).values(changes)).rowcount:
                raise Refused("somebody else served this one", code="no_such_booking")
            return booking

        return self._settled(attempt)

    def record_use(self, uses: Iterable[Use]) -> None:
        """What agents saw of GPUs in use; the same record again, with a later end, replaces the first."""
        rows = {
            (one.gpu, whole_seconds(one.start), one.person): {
                "gpu": one.gpu,
                "starts": whole_seconds(one.start),
                "person": one.person,
                "ends": whole_seconds(one.end),
                "host": one.host,
                "run_id": one.run_id,
                "reporter": self.person,
            }
            for one in uses
        }
        if rows:
            with transaction(self._engine, writes=True) as connection:
                upsert(connection, tables.uses, [rows[key] for key in sorted(rows)], ("ends", "host", "run_id"))

    def record_idle(self, evidence: Iterable[IdleEvidence]) -> None:
        """What agents saw of booked GPUs idle, with no live run on them. All members see it."""
        rows = {
            one.booking_id: {
                "booking_id": one.booking_id,
                "reporter": self.person,
                "idle_since": whole_seconds(one.idle_since),
                "seen_at": whole_seconds(one.seen_at),
            }
            for one in evidence
        }
        if rows:
            with transaction(self._engine, writes=True) as connection:
                upsert(connection, tables.idle_evidence, [rows[key] for key in sorted(rows)], ("idle_since", "seen_at"))

    def apply_idle(self) -> tuple[Booking, ...]:
        """Frees running bookings that agents saw idle for long enough: one's own, an admin those of all.

        The policies of PostgreSQL let nobody change another's booking, and evidence that a member writes is no proof.
        """
        now = self.now()
        rules, evidence = self.rules(), self.idle_evidence()
        freed: list[Booking] = []
        owner = None if self.is_admin else self.person
        for booking in self.bookings(now, now + timedelta(seconds=1), owner=owner, live=True):
            found = verdict(booking, evidence, rules, now)
            if found.verdict in (Verdict.NO_SHOW, Verdict.RELEASE):
                state = State.NO_SHOW if found.verdict is Verdict.NO_SHOW else State.RELEASED
                # It ends now, not when it would have: until now nobody else could have had it.
                freed.append(self._let_go(booking.id, state))
        return tuple(freed)

    def soon_idle(self) -> tuple[tuple[Booking, datetime], ...]:
        """Of one's own running bookings those that agents saw idle for so long that they will be freed, and when."""
        now = self.now()
        rules, evidence = self.rules(), self.idle_evidence()
        mine = self.bookings(now, now + timedelta(seconds=1), owner=self.person, live=True)
        found = [(booking, verdict(booking, evidence, rules, now)) for booking in mine]
        return tuple((booking, one.frees_at) for booking, one in found if one.verdict is Verdict.WARN and one.frees_at)


def upsert(connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]], renewed: Sequence[str]) -> None:
    """Inserts; where the key is there, renews the named columns."""
    make = sqlite.insert if connection.dialect.name == "sqlite" else postgresql.insert
    statement: Any = make(table)
    columns = {name: statement.excluded[name] for name in renewed}
    statement = statement.on_conflict_do_update(index_elements=list(table.primary_key.columns), set_=columns)
    connection.execute(statement, list(rows))

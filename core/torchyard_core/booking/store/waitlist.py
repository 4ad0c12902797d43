"""What a team shares beside the bookings: catalogue, rules, logins, waitlist, evidence of use and of idleness."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from sqlalchemy import Connection, Table, delete, insert, select, update
from sqlalchemy.dialects import postgresql, sqlite

import torchyard_core.booking.store.tables as tables
from torchyard_core.booking.errors import NoRights, Refused
from torchyard_core.booking.model import Booking, IdleEvidence, Login, Slot, State, Use, whole_seconds
from torchyard_core.booking.rules.idle_release import Verdict, verdict
from torchyard_core.booking.rules.team_rules import Rules
from torchyard_core.booking.search.slot_search import Wish
from torchyard_core.booking.store.commands import Writing, _new_id
from torchyard_core.booking.store.engine import transaction
from torchyard_core.booking.waitlist import Waiting, wish_to_json


class Serving(Writing):
    """The third part of a store."""

    def remember_slots(self, slots: Iterable[Slot]) -> None:
        """Adds GPUs that a desktop has found to the catalogue; an admin's desktop also renews what has changed of the
        others. None is removed. A member cannot rename or move a GPU that others have booked.
        """
        known = {slot.id: slot for slot in self.slots()}
        news = [slot for slot in slots if known.get(slot.id) != slot and (self.is_admin or slot.id not in known)]
        rows = [
            {"id": slot.id, "host": slot.host, "number": slot.index, "model": slot.model, "memory_mb": slot.memory_mb}
            for slot in sorted(news, key=lambda slot: slot.id)
        ]
        if rows:
            with transaction(self._engine, writes=True) as connection:
                upsert(connection, tables.gpus, rows, ("host", "number", "model", "memory_mb") if self.is_admin else ())

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
        """Joins the end of the waitlist. Raises Refused for a wish that cannot be met whatever becomes free."""
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
        """Books what is free now for all who wait, in order. Returns these bookings, and those that were made as this
        store let go of others since the last call."""
        self._settled(lambda connection: None, frees=True)
        served = []
        while self._served:
            served.append(self._served.popleft())
        return tuple(served)

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
        """What agents saw of booked GPUs idle, with no live run on them. Of others' bookings only an admin's evidence
        counts: a member's is left out. Newer evidence of the same reporter is never replaced by older.
        """
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
            of = tables.bookings
            which = [of.c.id.in_(rows), *(() if self.is_admin else (of.c.owner == self.person,))]
            with transaction(self._engine, writes=True) as connection:
                self._lock(connection, *(f"booking {key}" for key in rows))
                known = sorted(connection.execute(select(of.c.id).where(*which)).scalars())
                if known:
                    columns = ("idle_since", "seen_at")
                    upsert(connection, tables.idle_evidence, [rows[key] for key in known], columns, newest="seen_at")

    def apply_idle(self) -> tuple[Booking, ...]:
        """Frees running bookings that agents saw idle for long enough: one's own, an admin those of all.

        Each booking is judged again under its lock, in the transaction that frees it: a run that began, or evidence
        that came, after the first look keeps it.
        """
        now = self.now()
        rules, evidence = self.rules(), self.idle_evidence()
        owner = None if self.is_admin else self.person
        idle = [
            booking.id
            for booking in self.bookings(now, now + timedelta(seconds=1), owner=owner, live=True)
            if verdict(booking, evidence, rules, now).verdict in _FREES
        ]
        freed = [self._settled(partial(self._free_if_idle, booking_id), frees=True) for booking_id in idle]
        return tuple(one for one in freed if one is not None)

    def _free_if_idle(self, booking_id: str, connection: Connection) -> Booking | None:
        booking = self._own(connection, booking_id)
        now = self._now(connection)
        found = verdict(booking, self._idle_evidence(connection), self._rules(connection), now)
        if found.verdict not in _FREES:
            return None
        # It ends now, not when it would have: until now no other person could book its GPUs.
        return self._set(connection, booking, state=_FREES[found.verdict], let_go_at=now, changed=now)

    def soon_idle(self) -> tuple[tuple[Booking, datetime], ...]:
        """Of one's own running bookings those that agents saw idle for so long that they will be freed, and when."""
        now = self.now()
        rules, evidence = self.rules(), self.idle_evidence()
        mine = self.bookings(now, now + timedelta(seconds=1), owner=self.person, live=True)
        found = [(booking, verdict(booking, evidence, rules, now)) for booking in mine]
        return tuple((booking, one.frees_at) for booking, one in found if one.verdict is Verdict.WARN and one.frees_at)


_FREES = {Verdict.NO_SHOW: State.NO_SHOW, Verdict.RELEASE: State.RELEASED}


def upsert(
    connection: Connection,
    table: Table,
    rows: Sequence[Mapping[str, Any]],
    renewed: Sequence[str],
    *,
    newest: str | None = None,
) -> None:
    """Inserts; where the key is there, renews the named columns, with `newest` unless that column would decrease."""
    make = sqlite.insert if connection.dialect.name == "sqlite" else postgresql.insert
    statement: Any = make(table)
    columns = {name: statement.excluded[name] for name in renewed}
    keys = list(table.primary_key.columns)
    if columns:
        where = statement.excluded[newest] >= table.c[newest] if newest else None
        statement = statement.on_conflict_do_update(index_elements=keys, set_=columns, where=where)
    else:
        statement = statement.on_conflict_do_nothing(index_elements=keys)
    connection.execute(statement, list(rows))

"""Checks bookings and writes them within the caller's transaction.

The checks provide the error messages for the user. The database itself prevents double bookings, by a trigger or a
constraint.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, insert, update

import torchyard_core.booking.store.tables as tables
from torchyard_core.booking.errors import PermissionDenied, Refused
from torchyard_core.booking.model import Booking, Draft, Series, State, Use
from torchyard_core.booking.rules.quota import gpu_hours
from torchyard_core.booking.rules.refusal import Circumstances, check_owner, find_refusal
from torchyard_core.booking.rules.team_rules import Rules
from torchyard_core.booking.store.conflict_queries import ConflictQueries
from torchyard_core.booking.store.queries import BookingQueries
from torchyard_core.booking.store.store_session import StoreSession

CLOCK_TOLERANCE_S = 120.0
_COLUMNS = {"start": "starts", "end": "ends"}


@dataclass
class BookingWriter:
    """Checks bookings, and writes their rows."""

    _session: StoreSession
    _queries: BookingQueries
    _conflicts: ConflictQueries

    def begin(self, connection: Connection, owner: str, gpus: Iterable[str]) -> tuple[datetime, Rules]:
        """Acquires the locks of an owner and of GPUs. Returns the current time and the rules.

        Raises:
            Refused: This computer's clock differs from the database's by more than CLOCK_TOLERANCE_S.
        """
        self._session.lock(connection, f"person {owner}", *(f"gpu {gpu}" for gpu in gpus))
        now = self._session.now(connection)
        ahead = (self._session.clock() - now).total_seconds()
        if abs(ahead) > CLOCK_TOLERANCE_S:
            way = "ahead of" if ahead > 0 else "behind"
            place = self._session.place
            message = f"this computer's clock is {abs(ahead) / 60:.0f} min {way} the one of {place}; nothing was booked"
            raise Refused(message, code="clock", hint="Set it right (`timedatectl set-ntp true`), and try again.")
        return now, self._queries.load_rules(connection)

    def owner_of(self, draft: Draft) -> str:
        """Returns the owner of the draft. Raises PermissionDenied for another owner unless the user is an admin."""
        if draft.owner not in (None, self._session.person) and not self._session.is_admin:
            raise PermissionDenied(
                f"only an admin can book for {draft.owner}", hint="Leave the owner out to book for yourself."
            )
        return draft.owner or self._session.person

    def load_own(self, connection: Connection, booking_id: str, *, writes: bool = True) -> Booking:
        """Returns a booking that the user may change. The booking is locked unless `writes` is false.

        Raises Refused for an unknown ID, and for another user's booking unless the user is an admin.
        """
        if writes:
            self._session.lock(connection, f"booking {booking_id}")
        booking = self._queries.load_booking(connection, booking_id)
        if refused := check_owner(booking, self._session.person, is_admin=self._session.is_admin):
            raise refused
        return booking

    def check(
        self,
        connection: Connection,
        draft: Draft,
        now: datetime,
        rules: Rules,
        *,
        booking: Booking | None = None,
        together_with: Sequence[Draft] = (),
    ) -> None:
        """Raises Refused if the draft cannot be booked, or if `booking` cannot be changed to the draft.

        Args:
            draft: The new or changed booking.
            booking: The booking to change; None for a new booking.
            together_with: Drafts of the same owner in the same transaction, which also count towards the quota.
        """
        owner = self.owner_of(draft) if booking is None else booking.owner
        changed = booking.id if booking is not None else None
        hours = dict(self._queries.load_hours(connection, owner, draft.interval, rules, changed))
        for week, more in gpu_hours(together_with, rules.zone).items():
            hours[week] = hours.get(week, 0.0) + more
        slots = self._queries.load_slots(connection, draft.gpus)
        clashing = self._conflicts.find_clashing(connection, draft, changed)
        if refused := find_refusal(
            draft, Circumstances(rules, now, slots, self._session.person, hours, clashing), booking
        ):
            raise refused

    def insert(
        self, connection: Connection, drafts: Sequence[Draft], now: datetime, series_id: str | None
    ) -> list[Booking]:
        made = [
            Booking(id=new_id(), state=State.BOOKED, created=now, changed=now, series_id=series_id, **draft.__dict__)
            for draft in (replace(draft, owner=self.owner_of(draft)) for draft in drafts)
        ]
        insert_rows(connection, made)
        return made

    def rewrite(self, connection: Connection, booking: Booking, wanted: Draft, now: datetime) -> Booking:
        regrouped = wanted.gpus != booking.gpus
        of = tables.booking_gpus
        if regrouped:
            connection.execute(of.delete().where(of.c.booking_id == booking.id))
        names = ("title", "purpose", "start", "end", "run_id", "stop_at_end")
        changes = {name: getattr(wanted, name) for name in names}
        changed = self.update(connection, booking, **changes, changed=now)
        if regrouped:
            changed = replace(changed, gpus=wanted.gpus)
            connection.execute(insert(of), _gpu_rows([changed]))
        return changed

    def update(self, connection: Connection, booking: Booking, **changes: Any) -> Booking:
        """Writes the changed fields of a booking. Returns the changed booking.

        Raises PermissionDenied if no row was changed, because a database policy forbids the change.
        """
        changed = replace(booking, **changes)
        columns = {_COLUMNS.get(name, name): value for name, value in changes.items()}
        table = tables.bookings
        if connection.execute(update(table).where(table.c.id == booking.id).values(columns)).rowcount != 1:
            raise PermissionDenied(f"your role may not change {booking.owner}'s bookings", hint=f"Ask {booking.owner}.")
        return changed


def insert_rows(connection: Connection, made: Sequence[Booking]) -> None:
    """Inserts bookings, and their GPUs in the order of GPU IDs. `transaction` raises Overlap for a double booking."""
    connection.execute(insert(tables.bookings), [row_of(booking) for booking in made])
    connection.execute(insert(tables.booking_gpus), _gpu_rows(made))


def row_of(value: Booking | Series | Use) -> dict[str, Any]:
    """Returns a value's fields except `gpus`, keyed by the column names of the database table."""
    return {_COLUMNS.get(name, name): field for name, field in value.__dict__.items() if name != "gpus"}


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


def new_id() -> str:
    """Returns a random ID that is short enough to type: `b` and 12 hexadecimal digits."""
    return f"b{secrets.token_hex(6)}"

"""Copies one store to another, from a private file to the team's database or in the other direction."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, Table, insert, select

import torchyard_core.booking.store.tables as tables
from torchyard_core.booking.errors import PermissionDenied, Refused
from torchyard_core.booking.store.booking_store import BookingStore
from torchyard_core.booking.store.database_engine import Overlap, transaction

_TABLES = (
    tables.gpus,
    tables.series,
    tables.bookings,
    tables.booking_gpus,
    tables.waitlist,
    tables.uses,
    tables.idle_evidence,
    tables.rules,
    tables.logins,
)
_PERSONS = ("owner", "person", "reporter")


def transfer_all(
    source: BookingStore, target: BookingStore, persons: Mapping[str, str] | None = None
) -> dict[str, int]:
    """Copies the rows of `source` to `target` in one transaction. Returns the number of copied rows by table.

    The history of bookings is not copied. Rows whose key exists in `target` are skipped.

    Args:
        persons: New user names by old name, for example to replace the name in the settings by the database role.

    Raises:
        PermissionDenied: The user is not an admin of the target.
        Refused: Live bookings of the two stores overlap. Nothing was copied.
    """
    if not target.is_admin:
        raise PermissionDenied(
            "only an admin can move bookings into the team's database", hint="Ask one of its admins."
        )
    renamed = persons or {}
    counts: dict[str, int] = {}
    try:
        with transaction(source.session.engine) as reading, transaction(target.session.engine, writes=True) as writing:
            for table in _TABLES:
                rows = [_renamed(dict(row._mapping), renamed) for row in reading.execute(select(table))]
                counts[table.name] = _add(writing, table, rows)
    except Overlap:
        message = f"bookings of {source.place} and of {target.place} overlap; nothing was moved"
        hint = "Cancel those of one side that are in the way, and move again."
        raise Refused(message, code="conflict", hint=hint) from None
    return counts


def _renamed(row: dict[str, Any], persons: Mapping[str, str]) -> dict[str, Any]:
    for column in _PERSONS:
        if column in row:
            row[column] = persons.get(row[column], row[column])
    return row


def _add(connection: Connection, table: Table, rows: list[dict[str, Any]]) -> int:
    keys = list(table.primary_key.columns)
    there = {tuple(row) for row in connection.execute(select(*keys))}
    new = [row for row in rows if tuple(row[key.name] for key in keys) not in there]
    if "gpu" in table.c and "live" in table.c:
        new.sort(key=lambda row: (row["gpu"], row["starts"]))
    if new:
        connection.execute(insert(table), new)
    return len(new)

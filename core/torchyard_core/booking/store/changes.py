"""Which bookings have changed since a reader last looked, by the log that the database keeps (migration 0005)."""

from __future__ import annotations

from sqlalchemy import Connection, select

from torchyard_core.booking.model import Position
from torchyard_core.booking.store import tables

MOST_BOOKINGS = 2000
"""Where more have changed, a reader is better off with what it needs read anew."""
_MOST_ENTRIES = 20_000


def position(connection: Connection) -> Position:
    """The log's last entry. What is read afterwards is at least as new."""
    of = tables.booking_changes
    return Position(*connection.execute(select(of.c.seq, of.c.token).order_by(of.c.seq.desc()).limit(1)).one())


def changed_since(connection: Connection, since: Position) -> tuple[Position, frozenset[str]] | None:
    """The log's last entry, and the IDs of bookings with later entries than `since`. None where that is no entry of
    this log any more, or too much has changed."""
    of = tables.booking_changes
    chosen = select(of.c.seq, of.c.token, of.c.booking_id).where(of.c.seq >= since.seq).order_by(of.c.seq)
    rows = connection.execute(chosen.limit(_MOST_ENTRIES)).all()
    if not rows or Position(rows[0].seq, rows[0].token) != since or len(rows) == _MOST_ENTRIES:
        return None
    changed = frozenset(row.booking_id for row in rows[1:])
    return (Position(rows[-1].seq, rows[-1].token), changed) if len(changed) <= MOST_BOOKINGS else None

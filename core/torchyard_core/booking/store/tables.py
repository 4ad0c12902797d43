"""The SQLAlchemy tables. Triggers, constraints and policies are in `migrations`."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sqlalchemy import BigInteger, Boolean, Column, DateTime, Dialect, Integer, MetaData, Table, Text
from sqlalchemy.types import TypeDecorator, TypeEngine

KNOWN = frozenset(file.name[1:5] for file in (Path(__file__).parent / "migrations/versions").glob("v[0-9]*.py"))
"""The revisions of all migrations, taken from the names of their files."""
HEAD = max(KNOWN)


class Junk:
    """The type of the placeholder for an invalid time, which a file may contain: SQLite stores any value in any column.

    Readers skip a row with this placeholder, and report the row.
    """


JUNK = Junk()


def moment_of(seconds: Any) -> datetime | Junk:
    """Converts SQLite's seconds since 1970 to a time.

    Returns JUNK for text, infinity, or a year outside datetime's range.
    """
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (TypeError, ValueError, OverflowError, OSError):
        return JUNK


class Moment(TypeDecorator[datetime]):
    """The column type of an aware datetime in UTC.

    PostgreSQL stores timestamptz, and SQLite stores whole seconds since 1970.
    """

    impl = BigInteger
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        return dialect.type_descriptor(BigInteger() if dialect.name == "sqlite" else DateTime(timezone=True))

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> Any:
        if value is None or dialect.name != "sqlite":
            return value
        return int(value.timestamp())

    def process_result_value(self, value: Any, dialect: Dialect) -> Any:
        if value is None:
            return None
        return moment_of(value) if dialect.name == "sqlite" else value.astimezone(UTC)


metadata = MetaData()


def _table(name: str, keys: int = 1, **columns: type[TypeEngine[Any] | TypeDecorator[Any]]) -> Table:
    """Creates a table whose primary key consists of the first `keys` columns."""
    pairs = enumerate(columns.items())
    return Table(name, metadata, *(Column(column, kind, primary_key=place < keys) for place, (column, kind) in pairs))


gpus = _table("gpus", id=Text, host=Text, number=Integer, model=Text, memory_mb=Integer)
series = _table(
    "series", id=Text, owner=Text, title=Text, rule=Text, starts=Moment, ends=Moment, zone=Text, created=Moment
)
bookings = _table(
    "bookings",
    id=Text,
    owner=Text,
    title=Text,
    purpose=Text,
    starts=Moment,
    ends=Moment,
    zone=Text,
    state=Text,
    created=Moment,
    changed=Moment,
    series_id=Text,
    run_id=Text,
    stop_at_end=Boolean,
    let_go_at=Moment,
    uid=Text,
)
booking_gpus = _table(
    "booking_gpus", 2, booking_id=Text, gpu=Text, owner=Text, starts=Moment, ends=Moment, live=Boolean
)
booking_changes = _table("booking_changes", seq=BigInteger, booking_id=Text, token=Text)
waitlist = _table(
    "waitlist", id=Text, owner=Text, title=Text, wish=Text, zone=Text, created=Moment, state=Text, booking_id=Text
)
uses = _table("uses", 4, gpu=Text, starts=Moment, person=Text, reporter=Text, ends=Moment, host=Text, run_id=Text)
idle_evidence = _table("idle_evidence", 2, booking_id=Text, reporter=Text, idle_since=Moment, seen_at=Moment)
rules = _table("rules", id=Integer, body=Text)
logins = _table("logins", 3, host_pattern=Text, unix_user=Text, person=Text)
booking_history = _table(
    "booking_history",
    id=BigInteger,
    at=Moment,
    step=BigInteger,
    booking_id=Text,
    person=Text,
    desktop=Text,
    before=Text,
    after=Text,
)
version = _table("alembic_version", 0, version_num=Text)

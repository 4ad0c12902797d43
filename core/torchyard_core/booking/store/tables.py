"""The tables as SQLAlchemy uses them. Triggers, constraints and policies are in `migrations`."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sqlalchemy import BigInteger, Boolean, Column, DateTime, Dialect, Integer, MetaData, Table, Text
from sqlalchemy.types import TypeDecorator, TypeEngine

KNOWN = frozenset(file.name[1:5] for file in (Path(__file__).parent / "migrations/versions").glob("v[0-9]*.py"))
"""The revisions of all migrations, by the names of their files."""
HEAD = max(KNOWN)


class Junk:
    """Stands for an invalid time, as SQLite stores any value in any column. Readers skip and name the row."""


JUNK = Junk()


def moment_of(seconds: Any) -> datetime | Junk:
    """A time from SQLite's seconds since 1970; JUNK for text, infinity, or a year that datetime does not have."""
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (TypeError, ValueError, OverflowError, OSError):
        return JUNK


class Moment(TypeDecorator[datetime]):
    """An aware datetime in UTC: a timestamptz, or in SQLite whole seconds since 1970."""

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

gpus = Table(
    "gpus",
    metadata,
    Column("id", Text, primary_key=True),
    Column("host", Text),
    Column("number", Integer),
    Column("model", Text),
    Column("memory_mb", Integer),
)
series = Table(
    "series",
    metadata,
    Column("id", Text, primary_key=True),
    Column("owner", Text),
    Column("title", Text),
    Column("rule", Text),
    Column("starts", Moment),
    Column("ends", Moment),
    Column("zone", Text),
    Column("created", Moment),
)
bookings = Table(
    "bookings",
    metadata,
    Column("id", Text, primary_key=True),
    Column("owner", Text),
    Column("title", Text),
    Column("purpose", Text),
    Column("starts", Moment),
    Column("ends", Moment),
    Column("zone", Text),
    Column("state", Text),
    Column("created", Moment),
    Column("changed", Moment),
    Column("series_id", Text),
    Column("run_id", Text),
    Column("stop_at_end", Boolean),
    Column("let_go_at", Moment),
    Column("uid", Text),
)
booking_gpus = Table(
    "booking_gpus",
    metadata,
    Column("booking_id", Text, primary_key=True),
    Column("gpu", Text, primary_key=True),
    Column("owner", Text),
    Column("starts", Moment),
    Column("ends", Moment),
    Column("live", Boolean),
)
booking_changes = Table(
    "booking_changes",
    metadata,
    Column("seq", BigInteger, primary_key=True),
    Column("booking_id", Text),
    Column("token", Text),
)
waitlist = Table(
    "waitlist",
    metadata,
    Column("id", Text, primary_key=True),
    Column("owner", Text),
    Column("title", Text),
    Column("wish", Text),
    Column("zone", Text),
    Column("created", Moment),
    Column("state", Text),
    Column("booking_id", Text),
)
uses = Table(
    "uses",
    metadata,
    Column("gpu", Text, primary_key=True),
    Column("starts", Moment, primary_key=True),
    Column("person", Text, primary_key=True),
    Column("ends", Moment),
    Column("host", Text),
    Column("run_id", Text),
    Column("reporter", Text, primary_key=True),
)
idle_evidence = Table(
    "idle_evidence",
    metadata,
    Column("booking_id", Text, primary_key=True),
    Column("reporter", Text, primary_key=True),
    Column("idle_since", Moment),
    Column("seen_at", Moment),
)
rules = Table("rules", metadata, Column("id", Integer, primary_key=True), Column("body", Text))
logins = Table(
    "logins",
    metadata,
    Column("host_pattern", Text, primary_key=True),
    Column("unix_user", Text, primary_key=True),
    Column("person", Text, primary_key=True),
)
booking_history = Table(
    "booking_history",
    metadata,
    Column("id", BigInteger, primary_key=True),
    Column("at", Moment),
    Column("step", BigInteger),
    Column("booking_id", Text),
    Column("person", Text),
    Column("desktop", Text),
    Column("before", Text),
    Column("after", Text),
)
version = Table("alembic_version", metadata, Column("version_num", Text))

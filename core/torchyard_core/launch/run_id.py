"""Names for runs: sorted by time, short enough to type the end of."""

from __future__ import annotations

import secrets
from datetime import UTC, datetime


def new_run_id(now: datetime | None = None) -> str:
    """As `20261123-091502-3f9c`, in UTC."""
    return f"{(now or datetime.now(UTC)):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


def utc_now() -> str:
    """RFC 3339 in UTC, to the millisecond."""
    return as_utc(datetime.now(UTC).timestamp())


def as_utc(seconds: float) -> str:
    """A time since the epoch as RFC 3339 in UTC, to the millisecond."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")

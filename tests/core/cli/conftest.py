"""Fixtures of command tests: a PostgreSQL server for team calendars."""

from __future__ import annotations

from tests.core.booking.conftest import postgres

__all__ = ["postgres"]

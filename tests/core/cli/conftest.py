"""What tests of commands share: a real PostgreSQL for those about a team's calendar."""

from __future__ import annotations

from tests.core.booking.conftest import postgres

__all__ = ["postgres"]

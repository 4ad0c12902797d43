"""The snapshot of the calendar for agents: the coming days, sent by each desktop that connects."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from datetime import datetime
from itertools import groupby
from typing import Any

from torchyard_core.booking.model import Booking, Login, rfc3339
from torchyard_core.booking.rules.team_rules import Rules

VERSION = 1
_FIELDS = ("id", "owner", "title", "gpus", "start", "end", "state", "run_id", "stop_at_end")
FRESH_S = 3600
"""Enforcement acts on a snapshot no older than this."""


def agent_snapshot(
    bookings: Iterable[Booking], logins: Iterable[Login], rules: Rules, person: str, taken: datetime, until: datetime
) -> dict[str, Any]:
    """JSON of the live bookings by start, without purposes, and of the logins by host pattern and user."""
    live = [one for one in bookings if one.is_live and one.end > taken and one.start < until]
    live.sort(key=lambda one: (one.start, one.id))
    by_login = sorted(logins, key=lambda one: (one.host_pattern, one.user, one.person))
    return {
        "version": VERSION,
        "taken": rfc3339(taken),
        "fresh_s": FRESH_S,
        "from": rfc3339(taken),
        "until": rfc3339(until),
        "person": person,
        "idle_release_min": rules.idle_release_min,
        "bookings": [one.to_json(_FIELDS) for one in live],
        "enforcement": [asdict(one) for one in rules.enforcement],
        "logins": [
            {"host": host, "user": user, "persons": [one.person for one in group]}
            for (host, user), group in groupby(by_login, key=lambda one: (one.host_pattern, one.user))
        ],
    }

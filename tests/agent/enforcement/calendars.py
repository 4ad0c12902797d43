"""Calendars for tests, with bookings of one or two GPUs by Kim and Lee; times are in seconds."""

from __future__ import annotations

from typing import Any

from torchyard_agent.protocol.timestamps import rfc3339

A, B = "GPU-a", "GPU-b"
HOUR = 3600.0
T0 = 1_800_000_000.0


def booking(owner: str, start: float, end: float, *gpus: str, **changes: Any) -> dict[str, Any]:
    default = {
        "id": f"of-{owner}",
        "owner": owner,
        "title": f"{owner}'s work",
        "gpus": list(gpus or (A,)),
        "start": rfc3339(start),
        "end": rfc3339(end),
        "state": "booked",
        "run_id": None,
        "stop_at_end": False,
    }
    return {**default, **changes}


def login(user: str, *persons: str, host: str = "*") -> dict[str, Any]:
    return {"host": host, "user": user, "persons": list(persons)}


def snapshot(*bookings: dict[str, Any], taken: float = T0, **changes: Any) -> dict[str, Any]:
    default = {
        "version": 1,
        "taken": rfc3339(taken),
        "fresh_s": 3600,
        "from": rfc3339(taken),
        "until": rfc3339(taken + 72 * HOUR),
        "person": "kim",
        "idle_release_min": 30,
        "bookings": list(bookings),
        "logins": [],
        "enforcement": [],
    }
    return {**default, **changes}


def enforcement(level: str, grace_s: float = 60.0, *, dry_run: bool = False, host: str = "*") -> dict[str, Any]:
    return {"host": host, "level": level, "grace_s": grace_s, "dry_run": dry_run}

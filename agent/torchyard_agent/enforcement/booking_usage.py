"""Evidence of idle bookings and of GPU use, which is kept for desktops that connect later. This module does no I/O.

A booking is in use while any of its GPUs on this host is in use. A GPU is in use while an active process uses it, it
has load, a run holds it, or it does not respond. An idle process (see `process_activity`) is not active, and neither is
a display server that only draws. The time between samples that are too far apart counts neither as use nor as idle
time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from torchyard_agent.protocol.calendar import CalendarBooking
from torchyard_agent.protocol.timestamps import parse_timestamp, rfc3339

IDLE_PERCENT = 5
"""Utilization in percent below which a GPU without active processes counts as idle."""
KEPT_S = 3 * 86400.0
MAX_IDLE = 1000
MAX_USES = 3000


class Idle(NamedTuple):
    """An idle period of a booking: its GPUs on this host were idle from `since` to `seen`.

    If both times are equal, either the GPUs were in use at that time or their observation began then.
    """

    gpus: tuple[str, ...]
    since: float
    seen: float


class Used(NamedTuple):
    """The use of a GPU from `start` to `end` by a login or by a run of this login."""

    gpu: str
    user: str
    person: str
    """The person named in the record of the run, or "" if there is none."""
    run_id: str
    start: float
    end: float


def is_busy(gpu: Mapping[str, Any], held: Collection[str], asleep: Collection[int]) -> bool:
    """Returns whether a GPU is in use. A GPU that does not respond counts as in use.

    Args:
        gpu: The GPU's part of a sample.
        held: The UUIDs of the GPUs that runs hold.
        asleep: The PIDs of the processes that are not active.
    """
    utilisation = gpu["utilisation"]
    return bool(
        any(not process["draws_screen"] and process["pid"] not in asleep for process in gpu["processes"])
        or gpu["uuid"] in held
        or gpu.get("problem")
        or utilisation is None
        or utilisation >= IDLE_PERCENT
    )


def update_idle(
    known: Mapping[str, Idle],
    bookings: Iterable[CalendarBooking],
    busy: Collection[str],
    here: Collection[str],
    now: float,
    gap_s: float,
) -> dict[str, Idle]:
    """Returns the evidence of idle bookings, updated with one sample.

    Args:
        busy: The GPUs that are in use according to the sample.
        here: The GPUs of this host.
        gap_s: The longest time between two samples that counts as continuous observation.
    """
    after = {booking_id: idle for booking_id, idle in known.items() if now - idle.seen < KEPT_S}
    for one in bookings:
        part = tuple(gpu for gpu in one.gpus if gpu in here)
        if not part or not one.is_running(now):
            continue
        before = after.get(one.id)
        since = now
        if not any(gpu in busy for gpu in part) and before is not None and now - before.seen <= gap_s:
            since = max(before.since, one.start)
        after[one.id] = Idle(part, since, now)
    surplus = sorted(after, key=lambda booking_id: after[booking_id].seen)[: max(0, len(after) - MAX_IDLE)]
    return {booking_id: idle for booking_id, idle in after.items() if booking_id not in surplus}


def note_uses(known: Sequence[Used], seen: Iterable[tuple[str, str, str, str]], now: float, gap_s: float) -> list[Used]:
    """Returns the uses of GPUs, updated with one sample.

    A known use that is in the sample is extended if it was last seen at most `gap_s` seconds ago. Otherwise, a new use
    begins.

    Args:
        seen: (GPU, user, person, run ID) of each use in the sample.
    """
    uses = [one for one in known if now - one.end < KEPT_S]
    going = {one[:4]: number for number, one in enumerate(uses) if now - one.end <= gap_s}
    for use in dict.fromkeys(seen):
        if use in going:
            uses[going[use]] = uses[going[use]]._replace(end=now)
        else:
            uses.append(Used(*use, now, now))
    return uses[-MAX_USES:]


def to_json(idle: Mapping[str, Idle], uses: Iterable[Used], since: float = 0.0) -> dict[str, Any]:
    """Returns the evidence since the time `since`, in the format of the evidence file and of `bookings.evidence`."""
    return {
        "idle": [
            {"booking": booking_id, "gpus": list(one.gpus), "since": rfc3339(one.since), "seen": rfc3339(one.seen)}
            for booking_id, one in idle.items()
            if one.seen >= since
        ],
        "uses": [
            {**one._asdict(), "start": rfc3339(one.start), "end": rfc3339(one.end)} for one in uses if one.end >= since
        ],
    }


def from_json(data: Mapping[str, Any]) -> tuple[dict[str, Idle], list[Used]]:
    """Reads evidence that was written by `to_json`. Raises ValueError, KeyError or TypeError if it is invalid."""
    idle = {
        str(one["booking"]): Idle(
            tuple(map(str, one["gpus"])), parse_timestamp(one["since"]), parse_timestamp(one["seen"])
        )
        for one in data["idle"]
    }
    uses = [
        Used(**{**one, "start": parse_timestamp(one["start"]), "end": parse_timestamp(one["end"])})
        for one in data["uses"]
    ]
    return idle, uses

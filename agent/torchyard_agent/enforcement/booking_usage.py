"""What an agent saw of GPUs while no desktop was there: bookings that stayed idle, and who used what. Pure.

A booking is in use as long as one of its GPUs here is: by a process that computes, on the GPU or on a CPU, by work
that no process shows, or by a run that holds it, whatever that run does meanwhile. A process that sleeps is no use.
Time without a look counts for neither.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from torchyard_agent.protocol.calendar import Booked
from torchyard_agent.protocol.timestamps import parse_timestamp, rfc3339

IDLE_PERCENT = 5
"""Utilisation below which a GPU without processes is idle."""
KEPT_S = 3 * 86400.0
MOST_IDLE = 1000
MOST_USES = 3000


class Idle(NamedTuple):
    """A booking's GPUs here were idle from `since` to `seen`. Equal: they were in use then."""

    gpus: tuple[str, ...]
    since: float
    seen: float


class Used(NamedTuple):
    """A GPU was in use by a login, and a run of it, for a time."""

    gpu: str
    user: str
    person: str
    """As the run's record names it; empty where it is none of ours."""
    run_id: str
    start: float
    end: float


def is_busy(gpu: Mapping[str, Any], held: Collection[str], asleep: Collection[int]) -> bool:
    """`gpu`: its part of a sample. `held`: UUIDs that runs hold. `asleep`: PIDs of processes that do nothing.

    A GPU that does not answer is not called idle.
    """
    told = gpu["utilisation"]
    return bool(
        any(not process["draws_screen"] and process["pid"] not in asleep for process in gpu["processes"])
        or gpu["uuid"] in held
        or gpu.get("problem")
        or told is None
        or told >= IDLE_PERCENT
    )


def look(
    known: Mapping[str, Idle],
    bookings: Iterable[Booked],
    busy: Collection[str],
    here: Collection[str],
    now: float,
    gap_s: float,
) -> dict[str, Idle]:
    """What is known after a look. `here`: the GPUs that were looked at; `gap_s`: longest between two looks."""
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
    surplus = sorted(after, key=lambda booking_id: after[booking_id].seen)[: max(0, len(after) - MOST_IDLE)]
    return {booking_id: idle for booking_id, idle in after.items() if booking_id not in surplus}


def note_uses(known: Sequence[Used], seen: Iterable[tuple[str, str, str, str]], now: float, gap_s: float) -> list[Used]:
    """`seen`: (GPU, user, person, run ID) of this look. A use goes on where it was seen at the look before."""
    uses = [one for one in known if now - one.end < KEPT_S]
    going = {one[:4]: number for number, one in enumerate(uses) if now - one.end <= gap_s}
    for use in dict.fromkeys(seen):
        if use in going:
            uses[going[use]] = uses[going[use]]._replace(end=now)
        else:
            uses.append(Used(*use, now, now))
    return uses[-MOST_USES:]


def to_json(idle: Mapping[str, Idle], uses: Iterable[Used], since: float = 0.0) -> dict[str, Any]:
    """As `bookings.evidence` answers it, and as it is kept on the disk: what was seen at `since` or later."""
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
    """Raises ValueError, KeyError or TypeError for what `to_json` did not make."""
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

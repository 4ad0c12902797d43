"""When a run may begin and must leave, by its booking and by what is known of the others'. Pure.

A run goes on after its booking's end, unless a known booking of somebody else follows on one of its GPUs, or it is to
stop at the end in any case. Only a fresh calendar tells of others. Times are seconds since 1970.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

from torchyard_agent.protocol.calendar import Booked, Calendar, rfc3339, seconds_of

NEWER_BY_S = 60.0
"""A calendar must have been taken so long after the run was handed over before a booking's absence means anything."""


class OwnBooking(NamedTuple):
    """The booking that a run was started with."""

    id: str
    owner: str
    end: float
    stop_at_end: bool = False

    @classmethod
    def read(cls, told: Any) -> OwnBooking | None:
        """From `run.start`. Raises ValueError, KeyError or TypeError."""
        if told is None:
            return None
        return cls(str(told["id"]), str(told["owner"]), seconds_of(told["end"]), bool(told.get("stop_at_end")))


class Leave(NamedTuple):
    """By when nothing of a run may be on its GPUs, and why."""

    at: float
    why: str


class Notice(NamedTuple):
    """What a run was told of having to leave."""

    leave_at: float
    told_at: float


def leave(own: OwnBooking, gpus: Collection[str], known: Calendar | None, now: float) -> Leave | None:
    """When the run must have left, as far as is known now; None where it may go on."""
    fresh = known if known is not None and known.is_fresh(now) else None
    mine = fresh.booking(own.id) if fresh is not None else None
    end, stops = (mine.end, mine.stop_at_end) if mine is not None else (own.end, own.stop_at_end)
    found = [Leave(end, f"its booking ends at {rfc3339(end)}, and it is to stop then")] if stops else []
    if fresh is not None:
        other = _next_of_others(fresh, own.owner, gpus, now)
        if other is not None:
            why = f"its GPUs are booked by {other.owner} from {rfc3339(other.start)} on ({other.title})"
            found.append(Leave(other.start, why))
    return min(found) if found else None


def what_now(
    notice: Notice | None, must: Leave | None, now: float, *, warn_s: float, notice_s: float, grace_s: float
) -> tuple[Notice | None, str, float | None]:
    """(what it has been told, `warn`, `stop` or nothing, when to look again).

    It is warned `warn_s` before, and asked to end so early that its grace is over in time; but never less than
    `notice_s` after it was warned.
    """
    if must is None:
        return None, "", None
    if notice is not None and must.at > notice.leave_at:
        notice = None  # it may stay longer than it was told
    if notice is None:
        warn_at = must.at - max(warn_s, grace_s + notice_s)
        if now < warn_at:
            return None, "", warn_at
        return Notice(must.at, now), "warn", now
    stop_at = max(must.at - grace_s, notice.told_at + notice_s)
    return notice, "stop" if now >= stop_at else "", stop_at


class Start(NamedTuple):
    """Whether a run may begin now. `only_if_idle`: nobody knows whose turn it is. `refused`: why not at all."""

    only_if_idle: bool = False
    refused: str = ""


def may_begin(
    own: OwnBooking | None, gpus: Collection[str], known: Calendar | None, submitted: float, now: float
) -> Start:
    """At its start. `submitted`: when the run was handed to its keepers."""
    if known is None or not known.is_fresh(now):
        return Start(only_if_idle=True)
    if own is not None:
        if known.booking(own.id) is not None:
            return Start()
        if known.taken > submitted + NEWER_BY_S:
            return Start(refused="its booking is not in the calendar any more")
    for gpu in gpus:
        other = known.on(gpu, now)
        if other is not None and (own is None or other.owner != own.owner):
            return Start(refused=f"its GPUs are booked by {other.owner} until {rfc3339(other.end)} ({other.title})")
    return Start(only_if_idle=True)


def start_of(own: OwnBooking | None, planned: float, known: Calendar | None, now: float) -> float:
    """When it begins: a booking that was moved takes its run along."""
    mine = known.booking(own.id) if own is not None and known is not None and known.is_fresh(now) else None
    return planned if mine is None else max(planned, mine.start) if mine.start <= planned else mine.start


def _next_of_others(known: Calendar, owner: str, gpus: Collection[str], now: float) -> Booked | None:
    others = (
        one for one in known.bookings if one.owner != owner and one.end > now and any(g in gpus for g in one.gpus)
    )
    return min(others, key=lambda one: one.start, default=None)

"""Decides when a run may begin and must end, based on the bookings of its owner and of other users. No I/O.

A run continues after its booking has ended, unless another user's booking follows on one of its GPUs, or the booking
specifies that the run must stop at its end. Other users' bookings are considered only while the calendar is fresh.
Times are in seconds since 1970.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

from torchyard_agent.protocol.calendar import Calendar, CalendarBooking
from torchyard_agent.protocol.timestamps import parse_timestamp, rfc3339

NEWER_BY_S = 60.0
"""A missing booking counts as deleted only if the calendar is newer than the run by this many seconds."""


class OwnBooking(NamedTuple):
    """The booking for which a run was launched."""

    id: str
    owner: str
    end: float
    stop_at_end: bool = False

    @classmethod
    def read(cls, data: Any) -> OwnBooking | None:
        """Reads the booking from the parameters of `run.start`. Returns None if the run has no booking.

        Raises:
            ValueError, KeyError, TypeError: The parameters are invalid.
        """
        if data is None:
            return None
        return cls(str(data["id"]), str(data["owner"]), parse_timestamp(data["end"]), bool(data.get("stop_at_end")))


class Deadline(NamedTuple):
    """The time by which a run must have released its GPUs, and the reason."""

    at: float
    why: str


class Warned(NamedTuple):
    """A deadline about which the user was warned, and the time of the warning."""

    deadline: float
    warned_at: float


def deadline(own: OwnBooking, gpus: Collection[str], known: Calendar | None, now: float) -> Deadline | None:
    """Returns the time by which the run must end according to the known bookings, or None if it may continue."""
    fresh = known if known is not None and known.is_fresh(now) else None
    mine = fresh.booking(own.id) if fresh is not None else None
    end, stops = (mine.end, mine.stop_at_end) if mine is not None else (own.end, own.stop_at_end)
    found = [Deadline(end, f"its booking ends at {rfc3339(end)}, and it is to stop then")] if stops else []
    if fresh is not None:
        other = _next_of_others(fresh, own.owner, gpus, now)
        if other is not None:
            why = f"its GPUs are booked by {other.owner} from {rfc3339(other.start)} on ({other.title})"
            found.append(Deadline(other.start, why))
    return min(found) if found else None


def next_step(
    warned: Warned | None, must: Deadline | None, now: float, *, warn_s: float, notice_s: float, grace_s: float
) -> tuple[Warned | None, str, float | None]:
    """Returns the last warning, the action to take (`warn`, `stop` or ""), and the time of the next call.

    The warning is None if the user has not been warned, and the time is None if there is no deadline.

    The warning is due `warn_s` before the deadline or, if that is earlier, `grace_s + notice_s` before it. The run is
    stopped early enough for the grace period to end by the deadline, but at the earliest `notice_s` after the warning.
    """
    if must is None:
        return None, "", None
    if warned is not None and must.at > warned.deadline:
        warned = None  # The deadline was postponed, so the user is warned again.
    if warned is None:
        warn_at = must.at - max(warn_s, grace_s + notice_s)
        if now < warn_at:
            return None, "", warn_at
        return Warned(must.at, now), "warn", now
    stop_at = max(must.at - grace_s, warned.warned_at + notice_s)
    return warned, "stop" if now >= stop_at else "", stop_at


class StartVerdict(NamedTuple):
    """Whether a run may begin now, and on which condition."""

    only_if_idle: bool = False
    """Whether the run may begin only if no process uses its GPUs, because no fresh calendar contains its booking."""
    refused: str = ""
    """The reason why the run must not begin, or "" if it may."""
    booking_gone: bool = False
    """Whether the run must not begin because its booking was deleted."""


def may_begin(
    own: OwnBooking | None, gpus: Collection[str], known: Calendar | None, submitted: float, now: float
) -> StartVerdict:
    """Returns whether a run may begin at `now`. `submitted` is the time at which the keepers received the run."""
    if known is None or not known.is_fresh(now):
        return StartVerdict(only_if_idle=True)
    if own is not None:
        if known.booking(own.id) is not None:
            return StartVerdict()
        if known.taken > submitted + NEWER_BY_S:
            return StartVerdict(refused="its booking is not in the calendar any more", booking_gone=True)
    for gpu in gpus:
        other = known.on(gpu, now)
        if other is not None and (own is None or other.owner != own.owner):
            why = f"its GPUs are booked by {other.owner} until {rfc3339(other.end)} ({other.title})"
            return StartVerdict(refused=why)
    return StartVerdict(only_if_idle=True)


def start_of(own: OwnBooking | None, planned: float, known: Calendar | None, now: float) -> float:
    """Returns the run's start time: `planned`, or the start of its booking if the booking was moved to a later time."""
    mine = known.booking(own.id) if own is not None and known is not None and known.is_fresh(now) else None
    return planned if mine is None else max(planned, mine.start) if mine.start <= planned else mine.start


def _next_of_others(known: Calendar, owner: str, gpus: Collection[str], now: float) -> CalendarBooking | None:
    others = (
        one for one in known.bookings if one.owner != owner and one.end > now and any(g in gpus for g in one.gpus)
    )
    return min(others, key=lambda one: one.start, default=None)

"""Tests that bookings determine when a run may begin and when it must end."""

from __future__ import annotations

from typing import Any

import pytest

from tests.agent.enforcement.calendars import HOUR, T0, A, B, booking, snapshot
from torchyard_agent.keeper.decisions.booking_policy import (
    Deadline,
    OwnBooking,
    StartVerdict,
    Warned,
    deadline,
    may_begin,
    next_step,
    start_of,
)
from torchyard_agent.protocol.calendar import Calendar, parse

OWN = OwnBooking("mine", "kim", T0 + HOUR)
MINE = booking("kim", T0, T0 + HOUR, A, id="mine")
WAITS = {"warn_s": 600.0, "notice_s": 60.0, "grace_s": 30.0}


def known(*bookings: dict[str, Any], **changes: Any) -> Calendar:
    return parse(snapshot(*bookings, **changes))


def leaves_at(calendar: Calendar | None, own: OwnBooking = OWN, now: float = T0 + 60) -> float | None:
    found = deadline(own, [A], calendar, now)
    return None if found is None else found.at


def test_a_run_continues_after_its_booking_unless_another_owners_follows() -> None:
    assert leaves_at(None) is None
    assert leaves_at(known(MINE)) is None
    follows = booking("lee", T0 + HOUR, T0 + 2 * HOUR, A)
    assert leaves_at(known(MINE, follows)) == T0 + HOUR
    assert leaves_at(known(follows)) == T0 + HOUR, "its own has ended and is not in the calendar any more"
    assert leaves_at(known(MINE, booking("lee", T0 + HOUR, T0 + 2 * HOUR, B))) is None, "of other GPUs"
    assert leaves_at(known(MINE, booking("kim", T0 + HOUR, T0 + 2 * HOUR, A))) is None, "its own person's"
    later = booking("lee", T0 + 2 * HOUR, T0 + 3 * HOUR, A)
    assert leaves_at(known(MINE, later)) == T0 + 2 * HOUR, "no booking follows before"
    assert leaves_at(known(MINE, follows), now=T0 + HOUR + 1) is None, "the calendar is too old"


def test_a_run_with_stop_at_end_stops_with_any_calendar() -> None:
    stops = OWN._replace(stop_at_end=True)
    assert leaves_at(None, stops) == T0 + HOUR
    assert leaves_at(known(MINE), stops) is None, "the owner has changed their mind since"
    assert leaves_at(known({**MINE, "stop_at_end": True})) == T0 + HOUR
    extended = booking("kim", T0, T0 + 3 * HOUR, A, id="mine", stop_at_end=True)
    assert leaves_at(known(extended), stops) == T0 + 3 * HOUR


def test_a_run_is_warned_and_stopped_before_the_deadline() -> None:
    must = Deadline(T0, "lee follows")
    assert next_step(None, must, T0 - 700, **WAITS) == (None, "", T0 - 600)
    notice, act, _ = next_step(None, must, T0 - 600, **WAITS)
    assert (notice, act) == (Warned(T0, T0 - 600), "warn")
    assert next_step(notice, must, T0 - 100, **WAITS) == (notice, "", T0 - 30)
    assert next_step(notice, must, T0 - 30, **WAITS)[1] == "stop"


def test_a_run_is_never_stopped_without_notice() -> None:
    must = Deadline(T0, "lee follows")
    notice, act, _ = next_step(None, must, T0 + 500, **WAITS)
    assert act == "warn"
    assert next_step(notice, must, T0 + 559, **WAITS)[1] == ""
    assert next_step(notice, must, T0 + 560, **WAITS)[1] == "stop"


def test_a_later_deadline_is_warned_again_and_none_ends_the_warning() -> None:
    notice = Warned(T0, T0 - 600)
    assert next_step(notice, Deadline(T0 + HOUR, "later"), T0 - 100, **WAITS) == (None, "", T0 + HOUR - 600)
    assert next_step(notice, None, T0 - 10, **WAITS) == (None, "", None)


@pytest.mark.parametrize(
    ("own", "calendar", "now", "verdict"),
    [
        (OWN, known(MINE), T0 + 1, StartVerdict()),
        (OWN, None, T0 + 1, StartVerdict(only_if_idle=True)),
        (OWN, known(MINE), T0 + HOUR, StartVerdict(only_if_idle=True)),
        (OWN, known(), T0 + 1, StartVerdict(only_if_idle=True)),
        (None, known(), T0 + 1, StartVerdict(only_if_idle=True)),
        (None, known(booking("kim", T0, T0 + HOUR, B)), T0 + 1, StartVerdict(only_if_idle=True)),
    ],
)
def test_a_run_begins_in_its_booking_and_else_only_on_idle_gpus(
    own: OwnBooking | None, calendar: Calendar | None, now: float, verdict: StartVerdict
) -> None:
    assert may_begin(own, [A], calendar, T0, now) == verdict


def test_a_run_does_not_begin_on_booked_gpus_or_after_cancellation() -> None:
    lees = known(booking("lee", T0, T0 + HOUR, A))
    assert "booked by lee until" in may_begin(None, [A], lees, T0, T0 + 1).refused
    assert "booked by lee until" in may_begin(OWN, [A], lees, T0, T0 + 1).refused
    assert "not in the calendar any more" in may_begin(OWN, [A], known(taken=T0 + 61), T0, T0 + 62).refused


def test_a_moved_booking_moves_its_run() -> None:
    moved = known(booking("kim", T0 + HOUR, T0 + 2 * HOUR, A, id="mine"))
    assert start_of(OWN, T0, moved, T0) == T0 + HOUR
    assert start_of(OWN, T0 + 600, known(MINE), T0) == T0 + 600, "within its booking, as it was asked to"
    assert start_of(OWN, T0, moved, T0 + HOUR) == T0, "what is too old moves nothing"
    assert start_of(None, T0, moved, T0) == T0

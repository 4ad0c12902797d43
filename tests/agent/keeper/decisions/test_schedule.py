"""Tests of starting and ending scheduled runs according to the calendar."""

from __future__ import annotations

from tests.agent.enforcement.calendars import HOUR, T0, A, booking, snapshot
from torchyard_agent.keeper.decisions.booking_policy import OwnBooking, StartVerdict
from torchyard_agent.keeper.decisions.schedule import Schedule
from torchyard_agent.protocol.calendar import parse

OWN = OwnBooking("mine", "kim", T0 + 2 * HOUR)
MINE = booking("kim", T0 + HOUR, T0 + 2 * HOUR, A, id="mine")


def scheduled(own: OwnBooking | None = OWN, start_at: float | None = T0 + HOUR) -> Schedule:
    return Schedule(own, start_at, [A], submitted=T0, warn_s=600.0, notice_s=60.0, grace_s=30.0)


def test_a_run_starts_at_its_time_and_moves_with_its_booking() -> None:
    schedule = scheduled()
    assert schedule.next_start(T0) == (T0 + HOUR, None)
    assert schedule.update(parse(snapshot({**MINE, "start": T0 + 1.5 * HOUR}, taken=T0 + 60)))
    assert schedule.next_start(T0 + 120) == (T0 + 1.5 * HOUR, None)
    assert not schedule.update(parse(snapshot(MINE, taken=T0))), "an older calendar"
    assert schedule.update(parse(snapshot({**MINE, "start": T0 + 1.5 * HOUR}, taken=T0 + 1.5 * HOUR)))
    assert schedule.next_start(T0 + 1.5 * HOUR) == (T0 + 1.5 * HOUR, StartVerdict())


def test_a_run_whose_booking_was_deleted_does_not_wait_for_its_time() -> None:
    schedule = scheduled()
    schedule.update(parse(snapshot(taken=T0 + 120)))
    at, verdict = schedule.next_start(T0 + 180)
    assert at == T0 + HOUR
    assert verdict is not None
    assert verdict.booking_gone


def test_a_run_is_warned_once_and_then_stopped_before_its_deadline() -> None:
    schedule = scheduled(OWN._replace(stop_at_end=True))
    end = T0 + 2 * HOUR
    assert schedule.next_end(T0)[::2] == ("", end - 600)
    assert schedule.next_end(end - 600)[::2] == ("warn", end - 600)
    action, deadline, again_at = schedule.next_end(end - 500)
    assert (action, again_at) == ("", end - 30)
    assert deadline is not None
    assert schedule.next_end(end - 30)[0] == "stop"


def test_a_run_without_a_booking_has_no_end() -> None:
    assert scheduled(own=None, start_at=None).next_end(T0) == ("", None, None)

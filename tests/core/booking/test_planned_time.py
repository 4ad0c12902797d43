"""Tests of a topology's planned time: how it is parsed, formatted and stored, and which bookings overlap it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from torchyard_core.booking.errors import Refused
from torchyard_core.booking.model import Booking, State
from torchyard_core.booking.planned_time import PlannedTime, bookings_in, from_text, parse_planned_time, when_booked

NOW = datetime(2031, 1, 8, 8, 0, tzinfo=UTC)
ZONE = "Europe/Berlin"
HOUR = timedelta(hours=1)


def booking(owner: str, gpu: str, begin: float, end: float, state: State = State.BOOKED) -> Booking:
    start, finish = NOW + begin * HOUR, NOW + end * HOUR
    return Booking(f"{owner}{gpu}{begin}", owner, "digits", "", (gpu,), start, finish, ZONE, state, NOW, NOW)


@pytest.mark.parametrize(
    ("start", "lasts", "expected"),
    [
        ("now", "8h", "now, 8 h"),
        ("", "90m", "now, 90 min"),
        ("18:30", "4 h", "18:30, 4 h"),
        ("tomorrow 9", "2d", "Thu 9 Jan 09:00, 2 days"),
        ("+2h", "1h", "11:00, 1 h"),
    ],
)
def test_written_times_are_read_and_shown(start: str, lasts: str, expected: str) -> None:
    assert parse_planned_time(start, lasts, ZONE, NOW).words(NOW, ZONE) == expected


@pytest.mark.parametrize(
    ("start", "lasts", "code"),
    [("soon", "8h", "bad_time"), ("08:00", "8h", "past"), ("now", "long", "bad_time"), ("now", "0h", "bad_time")],
)
def test_what_is_no_time_to_plan_for_is_refused(start: str, lasts: str, code: str) -> None:
    with pytest.raises(Refused) as caught:
        parse_planned_time(start, lasts, ZONE, NOW)
    assert caught.value.code == code
    assert caught.value.hint


def test_it_is_kept_as_text_and_a_time_that_has_come_is_now() -> None:
    later = parse_planned_time("tomorrow 9", "4h", ZONE, NOW)
    assert from_text(later.to_text()) == later
    assert parse_planned_time(later.start_words(ZONE), later.length_words, ZONE, NOW) == later
    assert later.at(NOW).is_later
    assert later.at(NOW + 48 * HOUR) == PlannedTime(None, 4 * HOUR)
    assert from_text("rubbish") == from_text("") == PlannedTime()


def test_who_has_what_is_the_first_live_booking_that_touches_the_time() -> None:
    known = [
        booking("lee", "GPU-0", 2, 4),
        booking("sam", "GPU-0", 5, 6),
        booking("kim", "GPU-1", -1, 1),
        # A booking that begins when the planned time ends does not overlap it.
        booking("lee", "GPU-2", 8, 9),
        booking("lee", "GPU-3", 0, 4, State.RELEASED),
    ]
    found = bookings_in(known, "kim", PlannedTime().interval(NOW))
    assert {gpu: one.owner for gpu, one in found.others.items()} == {"GPU-0": "lee"}
    assert list(found.own) == ["GPU-1"]
    later = bookings_in(known, "kim", PlannedTime(NOW + 4 * HOUR, 2 * HOUR).interval(NOW))
    assert {gpu: one.owner for gpu, one in later.others.items()} == {"GPU-0": "sam"}


def test_the_end_is_shown_relative_to_the_planned_start() -> None:
    assert when_booked(booking("lee", "GPU-0", -2, 4), NOW, ZONE) == "until 13:00"
    assert when_booked(booking("lee", "GPU-0", 2, 4), NOW, ZONE) == "from 11:00 to 13:00"
    assert when_booked(booking("lee", "GPU-0", 2, 30), NOW, ZONE) == "from 11:00 to Thu 9 Jan 15:00"

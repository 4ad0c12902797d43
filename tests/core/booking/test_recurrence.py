"""Tests of series across clock changes: local times stay the same, UTC times change, and hours are counted in UTC."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from torchyard_core.booking.errors import Refused
from torchyard_core.booking.intervals import Interval
from torchyard_core.booking.recurrence import occurrences
from torchyard_core.booking.zone_weeks import by_week

HORIZON = datetime(2040, 1, 1, tzinfo=UTC)


def series(rule: str, local: str, hours: float, zone: str, until: datetime = HORIZON) -> tuple[Interval, ...]:
    start = datetime.fromisoformat(local).replace(tzinfo=ZoneInfo(zone)).astimezone(UTC)
    return occurrences(rule, start, start + timedelta(hours=hours), zone, until)


def utc(found) -> list[str]:
    return [f"{one.start:%m-%d %H:%MZ}" for one in found]


@pytest.mark.parametrize(
    ("zone", "local", "expected"),
    [
        ("Europe/Berlin", "2026-03-22 09:00", ["03-22 08:00Z", "03-29 07:00Z", "04-05 07:00Z"]),
        ("Europe/Berlin", "2026-10-18 09:00", ["10-18 07:00Z", "10-25 08:00Z", "11-01 08:00Z"]),
        ("America/New_York", "2026-03-01 09:00", ["03-01 14:00Z", "03-08 13:00Z", "03-15 13:00Z"]),
        ("America/New_York", "2026-10-25 09:00", ["10-25 13:00Z", "11-01 14:00Z", "11-08 14:00Z"]),
        ("Asia/Seoul", "2026-03-22 09:00", ["03-22 00:00Z", "03-29 00:00Z", "04-05 00:00Z"]),
        ("Asia/Seoul", "2026-10-18 09:00", ["10-18 00:00Z", "10-25 00:00Z", "11-01 00:00Z"]),
    ],
)
def test_weekly_at_nine_stays_at_nine_on_the_wall(zone, local, expected):
    found = series("FREQ=WEEKLY;COUNT=3", local, 8, zone)
    assert utc(found) == expected
    assert {one.start.astimezone(ZoneInfo(zone)).hour for one in found} == {9}
    assert {one.duration for one in found} == {timedelta(hours=8)}


@pytest.mark.parametrize(
    ("zone", "local", "expected"),
    [
        # 02:30 does not exist on 29 March; the offset before the change is applied, which gives 03:30 CEST.
        ("Europe/Berlin", "2026-03-28 02:30", ["03-28 01:30Z", "03-29 01:30Z", "03-30 00:30Z"]),
        # 02:30 occurs twice on 25 October; the first occurrence, in CEST, is used.
        ("Europe/Berlin", "2026-10-24 02:30", ["10-24 00:30Z", "10-25 00:30Z", "10-26 01:30Z"]),
        ("America/New_York", "2026-03-07 02:30", ["03-07 07:30Z", "03-08 07:30Z", "03-09 06:30Z"]),
        ("America/New_York", "2026-10-31 01:30", ["10-31 05:30Z", "11-01 05:30Z", "11-02 06:30Z"]),
        ("Asia/Seoul", "2026-03-28 02:30", ["03-27 17:30Z", "03-28 17:30Z", "03-29 17:30Z"]),
    ],
)
def test_an_hour_that_is_skipped_or_there_twice_is_booked_once(zone, local, expected):
    assert utc(series("FREQ=DAILY;COUNT=3", local, 1, zone)) == expected


def test_a_night_shift_lasts_as_long_in_utc_on_every_night():
    nights = series("FREQ=DAILY;COUNT=3", "2026-03-27 22:00", 8, "Europe/Berlin")
    ends = [one.end.astimezone(ZoneInfo("Europe/Berlin")).strftime("%H:%M") for one in nights]
    assert ends == ["06:00", "07:00", "06:00"]


def test_the_first_keeps_the_second_of_two_equal_hours():
    second = datetime(2026, 10, 25, 1, 30, tzinfo=UTC)
    found = occurrences("FREQ=DAILY;COUNT=2", second, second + timedelta(hours=1), "Europe/Berlin", HORIZON)
    assert utc(found) == ["10-25 01:30Z", "10-26 01:30Z"]


@pytest.mark.parametrize(("zone", "hours"), [("Europe/Berlin", 167), ("America/New_York", 168), ("Asia/Seoul", 168)])
def test_the_week_of_a_spring_night_has_an_hour_less(zone, hours):
    start = datetime(2026, 3, 23, tzinfo=ZoneInfo(zone))
    week = Interval(start.astimezone(UTC), datetime(2026, 3, 30, tzinfo=ZoneInfo(zone)).astimezone(UTC))
    assert by_week(week, zone) == {week.start: hours * 3600}


def test_weekdays_ends_and_month_ends():
    assert utc(series("RRULE:FREQ=WEEKLY;BYDAY=MO,WE;UNTIL=20260610T235959Z", "2026-06-01 09:00", 1, "UTC")) == [
        "06-01 09:00Z", "06-03 09:00Z", "06-08 09:00Z", "06-10 09:00Z",
    ]  # fmt: skip
    assert utc(series("FREQ=MONTHLY;BYMONTHDAY=-1;COUNT=3", "2026-01-31 09:00", 1, "UTC")) == [
        "01-31 09:00Z", "02-28 09:00Z", "03-31 09:00Z",
    ]  # fmt: skip
    assert len(series("FREQ=YEARLY", "2028-02-29 09:00", 1, "UTC")) == 3
    until = datetime(2026, 6, 3, 9, 0, tzinfo=UTC)
    assert len(series("FREQ=DAILY", "2026-06-01 09:00", 1, "UTC", until)) == 3


@pytest.mark.parametrize(
    ("rule", "says"),
    [
        ("every tuesday", "cannot be read at `every tuesday`"),
        ("FREQ=HOURLY", "repeats neither by days, weeks, months nor years"),
        ("FREQ=DAILY;COUNT=0", "COUNT that is no number above 0"),
        ("FREQ=DAILY;COUNT=2;UNTIL=20260101", "both COUNT and UNTIL"),
        ("FREQ=DAILY;BYDAY=XX", "cannot be read"),
        ("FREQ=DAILY;UNTIL=soon", "cannot be read"),
        ("FREQ=DAILY;COUNT=9999", "more than 500 bookings"),
        ("FREQ=DAILY;BYMONTH=2;BYMONTHDAY=30", "names no time before it ends"),
        ("FREQ=DAILY;UNTIL=20200101", "names no time before it ends"),
    ],
)
def test_a_rule_that_makes_no_series_is_refused_in_words_and_soon(rule, says):
    begin = time.process_time()
    with pytest.raises(Refused) as refused:
        series(rule, "2026-06-01 09:00", 1, "Europe/Berlin")
    assert says in refused.value.message
    assert refused.value.hint
    assert time.process_time() - begin < 5


def test_a_series_that_overlaps_itself_is_refused():
    with pytest.raises(Refused, match="overlaps itself"):
        series("FREQ=DAILY;COUNT=3", "2026-06-01 09:00", 25, "UTC")

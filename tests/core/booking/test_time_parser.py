"""Tests of parsing times in English and in Korean, including times across clock changes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchyard_core.booking.errors import Refused
from torchyard_core.booking.time_parser import end_moment, instants, length, moment
from torchyard_core.formatting import command_time, full_span, span

ZONE = "Europe/Berlin"
BERLIN = ZoneInfo(ZONE)
NOW = datetime(2026, 11, 23, 10, 15, tzinfo=BERLIN)
"""A Monday, in week 48."""


def local(text: str, now: datetime = NOW, zone: str = ZONE) -> str:
    return f"{moment(text, zone, now).astimezone(ZoneInfo(zone)):%a %Y-%m-%d %H:%M}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("fri 17:00", "Fri 2026-11-27 17:00"),
        ("FRIDAY 5 PM", "Fri 2026-11-27 17:00"),
        ("mon 11:00", "Mon 2026-11-23 11:00"),  # 11:00 is still ahead, so `mon` is today.
        ("mon 9:00", "Mon 2026-11-30 09:00"),
        ("next monday", "Mon 2026-11-30 00:00"),
        ("next fri 9", "Fri 2026-11-27 09:00"),
        ("Tomorrow 9", "Tue 2026-11-24 09:00"),
        ("day after tomorrow 9", "Wed 2026-11-25 09:00"),
        ("25.11. 14:00", "Wed 2026-11-25 14:00"),
        ("25.11.2027 14:00", "Thu 2027-11-25 14:00"),
        # A date less than 90 days ago is read as a date of this year, although a booking cannot begin in the past.
        ("1.11.", "Sun 2026-11-01 00:00"),
        ("1.2.", "Mon 2027-02-01 00:00"),
        # The limit of 90 days is the same whether the month is a number or a word.
        ("25.8.", "Wed 2027-08-25 00:00"),
        ("Aug 25", "Wed 2027-08-25 00:00"),
        ("26.8.", "Wed 2026-08-26 00:00"),
        ("Nov 25 9pm", "Wed 2026-11-25 21:00"),
        ("25th November, 12am", "Wed 2026-11-25 00:00"),
        ("Nov 1 12pm", "Sun 2026-11-01 12:00"),
        ("Jan 2, 2028 9:00", "Sun 2028-01-02 09:00"),
        ("jan 2 9:00", "Sat 2027-01-02 09:00"),
        ("fri 27 nov 2026 9:00", "Fri 2026-11-27 09:00"),
        ("Fri 2026-11-27 17:00", "Fri 2026-11-27 17:00"),  # Commands print times in this format.
        ("24:00", "Tue 2026-11-24 00:00"),
        ("fri 24:00", "Sat 2026-11-28 00:00"),
        ("2026-11-25 24:00", "Thu 2026-11-26 00:00"),
        ("2026-W48-5 17:00", "Fri 2026-11-27 17:00"),
        ("2026-w49", "Mon 2026-11-30 00:00"),
        ("내일 9시", "Tue 2026-11-24 09:00"),
        ("모레 오전 9시 30분", "Wed 2026-11-25 09:30"),
        ("금요일 오후 5시", "Fri 2026-11-27 17:00"),
        ("오후 12시", "Mon 2026-11-23 12:00"),
        ("오늘 24:00", "Tue 2026-11-24 00:00"),
        ("다음 주 금요일 9시", "Fri 2026-12-04 09:00"),
        ("11월 25일 14:00", "Wed 2026-11-25 14:00"),
        ("2027년 1월 3일", "Sun 2027-01-03 00:00"),
        ("+1h30m", "Mon 2026-11-23 11:45"),
        ("+1d", "Tue 2026-11-24 10:15"),
    ],
)
def test_dates_and_times_in_words(text: str, expected: str) -> None:
    assert local(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        *("noon", "may", "next week", "3 days ago", "yesterday", "feb 30", "31.02.", "29 feb 2027", "03/04", "24:30"),
        *("13pm", "오후 17시", "thu 2026-11-27 17:00", "2026-W60", "5pm fri", "1d", "9", "2026-11-25 9 9", "²"),
        "fri " * 40,
    ],
)
def test_what_could_mean_another_time_is_refused(text: str) -> None:
    with pytest.raises(Refused) as refused:
        moment(text, ZONE, NOW)
    assert refused.value.exit_code == 2
    assert refused.value.hint


DATES = ("%d.%m.%Y", "%-d.%-m.", "%b %-d", "%-d %B %Y", "%Y-%m-%d", "%G-W%V-%u", "%Y년 %-m월 %-d일")


@pytest.mark.parametrize("month", range(1, 13))
def test_each_day_is_read_as_that_date(month: int) -> None:
    """Without Torchyard's own rules, the library dateparser would read `1.11.` as 01:11."""
    for day in (1, 2, 9, 10, 12, 13, 28):
        wanted = datetime(2027, month, day, tzinfo=BERLIN)
        for pattern in DATES:
            found = local(f"{wanted:{pattern}} 9:00", wanted - timedelta(days=30))
            assert found == f"{wanted:%a %Y-%m-%d} 09:00", pattern


@pytest.mark.parametrize(
    ("start", "end", "hours"),
    [
        # The second `tomorrow` is relative to today, not to the first one.
        ("tomorrow 9", "tomorrow 17", 8),
        ("fri 17:00", "fri 22:00", 5),
        ("tomorrow 22:00", "06:00", 8),
        ("tomorrow 9", "24:00", 15),
        ("tomorrow 9", "5pm", 8),
        ("내일 9시", "오후 5시", 8),
        ("tomorrow 9", "+4h", 4),
        ("tomorrow 9", "1h30m", 1.5),
        ("tomorrow 9", "1d", 24),
        ("tomorrow 9", "2026-11-25 09:00", 24),
    ],
)
def test_an_end_counts_from_now_and_only_a_length_from_the_start(start: str, end: str, hours: float) -> None:
    begin = moment(start, ZONE, NOW)
    assert end_moment(end, begin, ZONE, NOW) - begin == timedelta(hours=hours)


def test_an_end_in_words_may_lie_before_the_start_which_no_booking_may() -> None:
    begin = moment("next monday 9:00", ZONE, NOW)
    assert end_moment("tomorrow 17", begin, ZONE, NOW) < begin


def test_a_time_that_a_spring_night_skips_is_refused() -> None:
    for text in ("2026-03-29 02:30", "2026-03-29T02:30:00", "29.3. 02:30"):
        with pytest.raises(Refused, match="has no 02:30 in Europe/Berlin") as refused:
            moment(text, ZONE, datetime(2026, 3, 27, tzinfo=UTC))
        assert refused.value.code == "no_such_time"
    start = moment("2026-03-29 01:00", ZONE, NOW)
    with pytest.raises(Refused, match=r"has no 02:30"):
        end_moment("02:30", start, ZONE, NOW)
    assert end_moment("03:30", start, ZONE, NOW) - start == timedelta(hours=1.5)


def test_of_a_time_that_an_autumn_night_has_twice_the_offset_is_asked_for() -> None:
    with pytest.raises(Refused) as refused:
        moment("2026-10-25 02:30", ZONE, NOW)
    assert refused.value.code == "ambiguous_time"
    first, second = "2026-10-25 02:30+02:00", "2026-10-25 02:30+01:00"
    assert refused.value.hint == f"Write `{first}` or `{second}`."
    start, end = moment(first, ZONE, NOW), moment(second, ZONE, NOW)
    assert end - start == timedelta(hours=1)
    with pytest.raises(Refused, match="twice"):
        end_moment("02:30", moment("2026-10-25 01:00", ZONE, NOW), ZONE, NOW)
    with pytest.raises(Refused, match="twice"):
        moment("25.10. 2:30", ZONE, datetime(2026, 10, 1, tzinfo=UTC))


def test_the_two_equal_times_of_an_autumn_night_show_their_offsets() -> None:
    start = datetime(2026, 10, 25, 0, 30, tzinfo=UTC)
    end = start + timedelta(hours=1)
    assert span(start, end, ZONE) == "from Sun 25 Oct 02:30+02:00 to 02:30+01:00"
    assert (
        full_span(start, end, ZONE)
        == "from Sun 2026-10-25 02:30+02:00 to Sun 2026-10-25 02:30+01:00 (Europe/Berlin, 1 h)"
    )
    assert full_span(NOW, NOW + timedelta(hours=8), ZONE).startswith(
        "from Mon 2026-11-23 10:15 to Mon 2026-11-23 18:15 ("
    )
    # The parser must accept all times that commands propose.
    for one in (start, end):
        assert moment(command_time(one, ZONE), ZONE, NOW) == one


def test_a_day_begins_where_clocks_are_put_forward_at_midnight() -> None:
    now = datetime(2027, 3, 20, tzinfo=UTC)
    assert instants(datetime(2027, 3, 28), "Asia/Beirut") == ()
    assert local("2027-03-28", now, "Asia/Beirut") == "Sun 2027-03-28 01:00"
    with pytest.raises(Refused, match="has no 00:00"):
        moment("2027-03-28 00:00", "Asia/Beirut", now)


def test_lengths_have_several_parts() -> None:
    assert length("1h30m") == length("+1H 30 min") == timedelta(minutes=90)
    assert length("1d") == timedelta(days=1)
    assert length("1w2d") == timedelta(days=9)
    for text in ("1h30", "1.5.5h", "-1h", "h", "1y"):
        with pytest.raises(Refused, match="not a length"):
            length(text)


_WORDS = [
    "fri",
    "next",
    "monday",
    "25.11.",
    "nov",
    "25",
    "9pm",
    "17:00",
    "24:00",
    "+1h",
    "내일",
    "9시",
    "오후",
    "다음 주",
]
_WORDS += ["금요일", "2026-11-25", "2026-W48", "t", "+09:00", "z", "tomorrow", "0", "99", ":", ",", "2027", "일", "월"]


@settings(deadline=None)
@given(st.one_of(st.text(max_size=30), st.lists(st.sampled_from(_WORDS), max_size=5).map(" ".join)))
def test_any_text_is_a_time_or_is_refused(text: str) -> None:
    for read in (lambda: moment(text, ZONE, NOW), lambda: end_moment(text, NOW, ZONE, NOW)):
        try:
            found = read()
        except Refused:
            continue
        assert found.utcoffset() == timedelta()

"""Tests of iCalendar files: export, import, compatibility with another library, and refusal of invalid files."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import icalendar
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.booking.teams import NOW, SLOTS, draft
from torchyard_core.booking.errors import BadCalendar
from torchyard_core.booking.ics import AT_MOST, export_ics, read_ics

DAYS = {"since": NOW - timedelta(days=1), "until": NOW + timedelta(days=60), "slots": SLOTS}


def event(*lines: str, head: tuple[str, ...] = ()) -> str:
    body = ("BEGIN:VCALENDAR", "VERSION:2.0", "PRODID:-//x//y//EN", *head, "BEGIN:VEVENT", "UID:u1", *lines)
    return "\r\n".join((*body, "END:VEVENT", "END:VCALENDAR", ""))


def test_what_is_exported_is_read_back_by_icalendar_and_by_ours(team):
    store = team.open("kim")
    one = store.book(draft("a0 a1 b3", 1, 2, "학습; a, b\\c", purpose="line one\nline two " + "long " * 40))
    other = store.book(draft("cpu", 26, 3, "preparing data", zone="Asia/Seoul"))
    cancelled = store.cancel(store.book(draft("a2", 3, 2)).id)
    text = export_ics([one, other, cancelled], team.slots)
    assert all(len(line.encode()) <= 75 for line in text.split("\r\n"))
    events = icalendar.Calendar.from_ical(text).events
    assert [(str(found["summary"]), found.start, found.end) for found in events] == [
        (one.title, one.start, one.end),
        (cancelled.title, cancelled.start, cancelled.end),
        (other.title, other.start, other.end),
    ]
    assert str(events[0]["location"]) == "gpu-a:0-1, gpu-b:3"
    assert str(events[1]["status"]) == "CANCELLED"
    read = read_ics(text, zone="Europe/Berlin", **DAYS)
    assert read.remarks == ()
    found = [(d.title, d.gpus, d.start, d.end, d.zone, d.purpose) for d in read.drafts]
    assert found == [(b.title, b.gpus, b.start, b.end, b.zone, b.purpose.strip()) for b in (one, other)] or found == [
        (b.title, b.gpus, b.start, b.end, b.zone, b.purpose) for b in (one, other)
    ]


def test_an_import_is_previewed_and_booked_once(team):
    store = team.open("kim")
    store.book(draft("a1", 24 * 8 + 1, 2))
    text = event(
        "SUMMARY:weekly", "DTSTART;TZID=Europe/Berlin:20310107T090000", "DTEND;TZID=Europe/Berlin:20310107T110000",
        "RRULE:FREQ=WEEKLY;COUNT=4", "EXDATE;TZID=Europe/Berlin:20310121T090000", "LOCATION:gpu-a:0-1",
    )  # fmt: skip
    read = read_ics(text, zone="UTC", **DAYS)
    assert [f"{one.start:%m-%d %H}" for one in read.drafts] == ["01-07 08", "01-14 08", "01-28 08"]
    assert {one.zone for one in read.drafts} == {"Europe/Berlin"}
    assert [one.verdict for one in store.preview(read.drafts)] == ["new", "clash", "new"]
    assert store.count() == 1
    store.book(read.drafts[0])
    assert [one.verdict for one in store.preview(read.drafts)] == ["there", "clash", "new"]


def test_whole_days_floating_times_and_durations():
    whole = read_ics(event("SUMMARY:day", "DTSTART;VALUE=DATE:20310110"), zone="Asia/Seoul", gpus=["GPU-a0"], **DAYS)
    assert (whole.drafts[0].start, whole.drafts[0].end) == (
        datetime(2031, 1, 9, 15, tzinfo=UTC),
        datetime(2031, 1, 10, 15, tzinfo=UTC),
    )
    assert "a whole day" in whole.remarks[0]
    floating = event("SUMMARY:x", "DTSTART:20310110T090000", "DURATION:PT90M")
    (found,) = read_ics(floating, zone="Europe/Berlin", gpus=["GPU-a0"], **DAYS).drafts
    assert (found.start, found.end) == (
        datetime(2031, 1, 10, 8, tzinfo=UTC),
        datetime(2031, 1, 10, 9, 30, tzinfo=UTC),
    )


def test_an_event_that_names_no_gpu_is_left_out_with_a_remark():
    text = event("SUMMARY:lunch", "DTSTART:20310110T110000Z", "DTEND:20310110T120000Z", "LOCATION:canteen")
    read = read_ics(text, zone="UTC", **DAYS)
    assert read.drafts == ()
    assert read.remarks == ("lunch (line 4): left out, no host `canteen` has GPUs to book",)
    assert read_ics(text, zone="UTC", gpus=["GPU-b0"], **DAYS).drafts[0].gpus == ("GPU-b0",)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hello",
        b"\xff\xfe\x00\x01",
        "BEGIN:VCALENDAR\r\nBEGIN:VEVENT\r\nEND:VCALENDAR\r\n",
        event("DTSTART:yesterday", "SUMMARY:x"),
        event("DTSTART;TZID=Nowhere/Land:20310110T090000", "RRULE:FREQ=SOMETIMES"),
        event("SUMMARY:no start"),
        # With an interval of 0, the recurrence would never end.
        event("DTSTART:20310110T090000Z", "RRULE:FREQ=DAILY;INTERVAL=0"),
        event("DTSTART:20310110T090000Z", "RRULE:INTERVAL=1;FREQ=SECO", " NDLY"),
    ],
)
def test_a_malformed_calendar_is_a_sentence_and_books_nothing(text):
    with pytest.raises(BadCalendar) as refused:
        read_ics(text, zone="UTC", gpus=["GPU-a0"], **DAYS)
    assert refused.value.message.startswith("the calendar cannot be read: ")
    assert refused.value.hint


def several(*events: tuple[str, ...], end: bool = True) -> str:
    lines = ["BEGIN:VCALENDAR", "VERSION:2.0", "PRODID:-//x//y//EN"]
    for lines_of_it in events:
        lines += ["BEGIN:VEVENT", *lines_of_it, "END:VEVENT"]
    return "\r\n".join([*lines, *["END:VCALENDAR"] * end, ""])


GOOD = ("UID:good", "SUMMARY:good", "DTSTART:20310110T090000Z", "DTEND:20310110T100000Z")


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (("DTSTART:yesterday",), "DTSTART cannot be read"),
        (("DTSTART:20310110T090000Z", "DURATION:PT1H", "RRULE:FREQ=SOMETIMES"), "RRULE cannot be read"),
        (("DTSTART:20310110T090000Z", "DURATION:PT1H", "EXDATE:soon"), "EXDATE cannot be read"),
        (("DTSTART:20310110T090000Z", "DTEND:20310230T090000Z"), "DTEND cannot be read"),
        (("DTSTART;TZID=Nowhere/Land:20310110T090000",), "the time zone `Nowhere/Land` is unknown"),
        (("SUMMARY:bad",), "it has no DTSTART"),
        (("DTSTART:20310110T090000Z", "DTEND 20310110T100000Z"), "a line cannot be read"),
        (("DTSTART:20310110T090000Z", "EXDATE;;"), "a line cannot be read"),
        (("DTSTART:PT1H",), "its DTSTART is not a time"),
        (
            ("RECURRENCE-ID:20310117T090000Z", "RECURRENCE-ID:20310124T090000Z", "DTSTART:20310125T090000Z"),
            "it has several RECURRENCE-ID",
        ),
        (("RECURRENCE-ID:PT1H", "DTSTART:20310125T090000Z"), "its RECURRENCE-ID is not a time"),
        (("DTSTART:20310110T090000Z", "RRULE:FREQ=HOURLY"), "repeats more often than 24 times a day"),
        (("DTSTART:20310110T090000Z", "RRULE:FREQ=HOURLY;INTERVAL=12"), "or by hours without an end"),
        (("DTSTART:20310110T090000Z", "RRULE:FREQ=MINUTELY;COUNT=9;BYHOUR=9"), "or by hours without an end"),
        (("DTSTART:20310110T090000Z", "RRULE:FREQ=DAILY;INTERVAL=0"), "or at no interval"),
        (("DTSTART:20310110T090000Z", "RRULE:FREQ=SECONDLY;COUNT=999999"), "it repeats more than 200,000 times"),
        (("DTSTART:14700101T090000Z", "RRULE:FREQ=DAILY"), "it repeats more than 200,000 times by 2031-03-07"),
        (("DTSTART:20310110T090000Z", "RRULE:FREQ=DAILY;BYMONTH=2;BYMONTHDAY=30"), "its rule has no occurrences"),
        (
            ("DTSTART:20310110T090000Z", f"RRULE:FREQ=DAILY;BYHOUR={'1,' * 9}1;BYMINUTE=1,2;BYSECOND=1,2"),
            "repeats more often than 24 times a day",
        ),
        (("DTSTART:20310110T090000Z", "BEGIN:VALARM", "ACTION:DISPLAY"), "its VALARM has no end"),
        (("DTSTART:20310110T090000Z", "BEGIN:VEVENT", "DTSTART:20310110T090000Z", "UID:x", "DTEND:x"), "it has no end"),
    ],
)
def test_one_bad_event_is_listed_by_its_line_and_the_others_are_read(bad, why):
    text = several(GOOD, ("UID:bad", *bad), (*GOOD[:1], *GOOD[1:2], "DTSTART:20310111T090000Z", "DURATION:PT1H"))
    read = read_ics(text, zone="UTC", gpus=["GPU-a0"], **DAYS)
    # The second event has the UID of the first one, but is a different event.
    assert [(one.title, f"{one.start:%m-%d}") for one in read.drafts] == [("good", "01-10"), ("good", "01-11")]
    assert read.unread >= 1
    assert "(line 10): left out, " in read.remarks[0]
    assert why in read.remarks[0]


@pytest.mark.parametrize("torn", ["a line", "SUMMARY=x", "X-APPLE-RADIUS=49.91307046514149", "SEQUENCE:x"])
def test_a_torn_line_that_holds_no_time_leaves_its_event(torn):
    read = read_ics(several((*GOOD, torn)), zone="UTC", gpus=["GPU-a0"], **DAYS)
    assert [one.title for one in read.drafts] == ["good"]
    assert read.unread == 0
    passed_over = "good (line 4): a line of it cannot be read and was skipped"
    assert read.remarks == (() if ":" in torn else (passed_over,))


def test_an_event_without_a_calendar_around_it_is_read():
    text = "\r\n".join(["BEGIN:VEVENT", *GOOD, "END:VEVENT", ""])
    assert [one.title for one in read_ics(text, zone="UTC", gpus=["GPU-a0"], **DAYS).drafts] == ["good"]


def test_hours_that_end_are_expanded():
    hourly = ("UID:h", "SUMMARY:h", "DTSTART:20310110T090000Z", "DURATION:PT1H")
    by_count = read_ics(several((*hourly, "RRULE:FREQ=HOURLY;INTERVAL=3;COUNT=4")), zone="UTC", gpus=["GPU-a0"], **DAYS)
    by_time = read_ics(several((*hourly, "RRULE:FREQ=HOURLY;INTERVAL=3;UNTIL=20310110T200000Z")), zone="UTC",
                       gpus=["GPU-a0"], **DAYS)  # fmt: skip
    assert [one.start.hour for one in by_count.drafts] == [9, 12, 15, 18]
    assert by_time.drafts == by_count.drafts


def test_what_is_repeated_for_ever_is_expanded_no_further_than_it_is_taken():
    text = event("SUMMARY:x", "DTSTART:20310107T090000Z", "DURATION:PT1H", "RRULE:FREQ=DAILY")
    until = NOW + timedelta(days=365 * 300)
    read = read_ics(text, zone="UTC", gpus=["GPU-a0"], **{**DAYS, "until": until})
    assert len(read.drafts) == AT_MOST
    assert read.drafts[-1].start == datetime(2031, 1, 7, 9, tzinfo=UTC) + timedelta(days=AT_MOST - 1)
    # The reader must not expand all 110,000 events.
    assert read.remarks == ("1096 events: only the first 1000 were taken",)


def test_a_file_that_takes_too_long_is_listed_from_there(monkeypatch):
    monkeypatch.setattr("torchyard_core.booking.ics.LONGEST_S", -1.0)
    with pytest.raises(BadCalendar, match="line 4: reading the file took longer than"):
        read_ics(several(GOOD), zone="UTC", gpus=["GPU-a0"], **DAYS)


def test_of_versions_of_an_event_the_newest_is_read_and_the_others_are_listed():
    old = ("UID:u", "SUMMARY:old", "SEQUENCE:1", "DTSTART:20310110T090000Z", "DURATION:PT1H")
    new = ("UID:u", "SUMMARY:new", "SEQUENCE:2", "DTSTART:20310110T110000Z", "DURATION:PT1H")
    again = ("UID:v", "SUMMARY:again", "DTSTART:20310112T110000Z", "DURATION:PT1H")
    read = read_ics(several(new, old, again, again), zone="UTC", gpus=["GPU-a0"], **DAYS)
    assert [one.title for one in read.drafts] == ["new", "again"]
    assert read.remarks == (
        "old (line 11): left out, line 4 has the same event",
        "again (line 18): left out, line 24 has the same event",
    )


def test_an_event_beyond_the_days_that_are_read_is_listed():
    later = ("UID:l", "SUMMARY:later", "DTSTART:20320110T090000Z", "DURATION:PT1H")
    read = read_ics(several(GOOD, later), zone="UTC", gpus=["GPU-a0"], **DAYS)
    assert read.remarks == ("later (line 10): left out, it begins after 2031-03-07",)


def test_a_changed_occurrence_belongs_to_its_series():
    series = ("UID:s", "SUMMARY:s", "DTSTART:20310107T090000Z", "DURATION:PT1H", "RRULE:FREQ=WEEKLY;COUNT=3")
    moved = ("UID:s", "SUMMARY:s", "RECURRENCE-ID:20310114T090000Z", "DTSTART:20310115T090000Z", "DURATION:PT1H")
    read = read_ics(several(series, GOOD, moved), zone="UTC", gpus=["GPU-a0"], **DAYS)
    assert [f"{one.start:%m-%d}" for one in read.drafts] == ["01-07", "01-10", "01-15", "01-21"]
    assert read.remarks == ()


def test_a_file_that_breaks_off_and_one_with_other_bytes_is_read_as_far_as_it_goes():
    whole = several(GOOD, end=False)
    read = read_ics(whole + "BEGIN:VEVENT\r\nUID:cut\r\nDTSTA", zone="UTC", gpus=["GPU-a0"], **DAYS)
    assert [one.title for one in read.drafts] == ["good"]
    assert read.remarks == ("event (line 10): left out, it has no end",)
    latin = several(GOOD, ("UID:l", "SUMMARY:Prüfung", *GOOD[2:])).encode("latin-1")
    assert len(read_ics(latin, zone="UTC", gpus=["GPU-a0"], **DAYS).drafts) == 2


_LINES = [
    *("BEGIN:VEVENT", "END:VEVENT", "BEGIN:VCALENDAR", "END:VCALENDAR", "BEGIN:VALARM", "END:VALARM", "UID:u", "UID:v"),
    *(
        "DTSTART:20310110T090000Z",
        "DTSTART;VALUE=DATE:20310110",
        "DTSTART;TZID=X:20310110T090000",
        "DTSTART:x",
        "DTEND:",
    ),
    *("DURATION:PT1H", "DURATION:-P1D", "RRULE:FREQ=DAILY;COUNT=3", "RRULE:FREQ=YEARLY;BYMONTHDAY=31", "RRULE:"),
    *("EXDATE:20310111T090000Z", "RDATE:20310111", "RECURRENCE-ID:20310111T090000Z", "SEQUENCE:2", "SEQUENCE:x", " y"),
    *("SUMMARY:s", "STATUS:CANCELLED", "X-WR-TIMEZONE:Asia/Seoul", "X-WR-TIMEZONE:x", "\x00", "a line", ""),
]


@settings(deadline=None, max_examples=150)
@given(st.lists(st.sampled_from(_LINES), max_size=14))
def test_any_file_is_read_or_refused_in_words(lines):
    text = several(GOOD, end=False) + "\r\n".join(["BEGIN:VEVENT", *lines, "END:VCALENDAR"])
    try:
        read = read_ics(text, zone="UTC", gpus=["GPU-a0"], **DAYS)
    except BadCalendar:
        return
    assert all(one.start < one.end for one in read.drafts)


def test_many_repeated_events_are_not_all_expanded():
    """It takes ten seconds to expand 100 such events (17 kB), so a file of 10 MB would take more than an hour."""
    hourly = ("DTSTART:20300101T000000Z", "DURATION:PT1M", f"RRULE:FREQ=DAILY;BYHOUR={','.join(map(str, range(24)))}")
    lines = (line for number in range(100) for line in ("BEGIN:VEVENT", f"UID:{number}", *hourly, "END:VEVENT"))
    text = "\r\n".join(["BEGIN:VCALENDAR", "VERSION:2.0", *lines, "END:VCALENDAR", ""])
    read = read_ics(text, zone="UTC", gpus=["GPU-a0"], **DAYS)
    assert len(read.drafts) == 1000
    assert read.remarks[0].startswith("event (line 45): left out with all after it, ")
    assert read.remarks[-1] == "10248 events: only the first 1000 were taken"


def test_a_zone_that_cannot_be_read_leaves_the_events_of_others():
    zone = ("BEGIN:VTIMEZONE", "TZID:Europe/Berlin", "BEGIN:STANDARD", "DTSTART:never", "END:VTIMEZONE")
    text = event("SUMMARY:x", "DTSTART;TZID=Europe/Berlin:20310110T090000", "DURATION:PT1H", head=zone)
    (found,) = read_ics(text, zone="UTC", gpus=["GPU-a0"], **DAYS).drafts
    assert found.start == datetime(2031, 1, 10, 8, tzinfo=UTC)


def test_a_file_of_another_calendar_is_read(tmp_path: Path):
    """The sample resembles files from Google and Outlook: its own VTIMEZONE, folded lines, an alarm."""
    zone = (
        "BEGIN:VTIMEZONE", "TZID:W. Europe Standard Time", "BEGIN:STANDARD", "DTSTART:16010101T030000",
        "TZOFFSETFROM:+0200", "TZOFFSETTO:+0100", "RRULE:FREQ=YEARLY;INTERVAL=1;BYDAY=-1SU;BYMONTH=10", "END:STANDARD",
        "BEGIN:DAYLIGHT", "DTSTART:16010101T020000", "TZOFFSETFROM:+0100", "TZOFFSETTO:+0200",
        "RRULE:FREQ=YEARLY;INTERVAL=1;BYDAY=-1SU;BYMONTH=3", "END:DAYLIGHT", "END:VTIMEZONE",
    )  # fmt: skip
    text = event(
        "SUMMARY:train", "DTSTART;TZID=W. Europe Standard Time:20310110T090000",
        "DTEND;TZID=W. Europe Standard Time:20310110T100000", "DESCRIPTION:a long line that goes on and on and o",
        " n", "BEGIN:VALARM", "ACTION:DISPLAY", "DESCRIPTION:x", "TRIGGER:-PT15M", "END:VALARM", head=zone,
    )  # fmt: skip
    (found,) = read_ics(text.encode(), zone="UTC", gpus=["GPU-a0"], **DAYS).drafts
    assert found.start == datetime(2031, 1, 10, 8, tzinfo=UTC)
    assert found.purpose.endswith("and on")

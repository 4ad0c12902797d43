"""Calendars out and in: read back by another library and by ours, and what is none is refused."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import icalendar
import pytest

from tests.core.booking.teams import NOW, SLOTS, draft
from torchyard_core.booking.ics import export_ics, read_ics
from torchyard_core.booking.refusals import BadCalendar

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
    events = icalendar.Calendar.from_ical(text).walk("VEVENT")
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
    assert read.remarks == ("lunch: left out, no host `canteen` has GPUs to book",)
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
        event("DTSTART:20310110T090000Z", "RRULE:FREQ=DAILY;INTERVAL=0"),  # would be expanded for ever
        event("DTSTART:20310110T090000Z", "RRULE:INTERVAL=1;FREQ=SECO", " NDLY"),
    ],
)
def test_a_malformed_calendar_is_a_sentence_and_books_nothing(text):
    with pytest.raises(BadCalendar) as refused:
        read_ics(text, zone="UTC", gpus=["GPU-a0"], **DAYS)
    assert refused.value.message.startswith("the calendar cannot be read: ")
    assert refused.value.hint


def test_a_file_of_another_calendar_is_read(tmp_path: Path):
    """As Google and Outlook write them: a VTIMEZONE of its own, folded lines, an alarm."""
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

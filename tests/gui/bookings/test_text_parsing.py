"""Tests of parsing pasted lines and the fields of dialogs, and of refusals based on the loaded calendar."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.gui.bookings.conftest import NOW, SLOTS, ZONE
from torchyard_core.booking.errors import Refused
from torchyard_core.booking.model import Booking, Draft
from torchyard_core.booking.rules.enforcement import Enforcement
from torchyard_core.booking.rules.open_times import Window
from torchyard_core.booking.rules.team_rules import Rules, form_problems, form_texts, read_form
from torchyard_core.booking.store import open_store
from torchyard_core.errors import UsageError
from torchyard_gui.bookings.dialogs.booking_form import Fields, format_time, read
from torchyard_gui.bookings.draft_validation import LoadedCalendar, find_loaded_refusal
from torchyard_gui.bookings.paste_parser import read_draft


@pytest.mark.parametrize(
    ("text", "gpus", "start", "end", "title"),
    [
        ("gpu-b:2-3 tomorrow 9-17", ("GPU-b2", "GPU-b3"), "2031-01-09 09:00", "2031-01-09 17:00", "Reserved"),
        ("gpu-a:0,1 10:30 - 12 my probe", ("GPU-a0", "GPU-a1"), "2031-01-08 10:30", "2031-01-08 12:00", "my probe"),
        ("gpu-a:0 gpu-b:0 fri 22-6", ("GPU-a0", "GPU-b0"), "2031-01-10 22:00", "2031-01-11 06:00", "Reserved"),
        ("gpu-a:0 now for 4h", ("GPU-a0",), "2031-01-08 09:00", "2031-01-08 13:00", "Reserved"),
        ("gpu-a:0 2031-02-01 8-9: eval", ("GPU-a0",), "2031-02-01 08:00", "2031-02-01 09:00", "eval"),
        ("gpu-a:0 today 20-24", ("GPU-a0",), "2031-01-08 20:00", "2031-01-09 00:00", "Reserved"),
    ],
)
def test_a_pasted_line_becomes_a_draft(text: str, gpus: tuple[str, ...], start: str, end: str, title: str) -> None:
    draft = read_draft(text, SLOTS, ZONE, NOW, "Reserved")
    assert (draft.gpus, format_time(draft.start, ZONE), format_time(draft.end, ZONE), draft.title) == (
        gpus,
        start,
        end,
        title,
    )


@pytest.mark.parametrize(
    "text", ["", "hello world", "gpu-z:1 9-17", "gpu-a:9 9-17", "gpu-a:0", "gpu-a:0 25-26", "gpu-a:0 2031-02-30 8-9"]
)
def test_what_is_no_booking_is_refused_with_a_sentence(text: str) -> None:
    with pytest.raises(Refused) as told:
        read_draft(text, SLOTS, ZONE, NOW, "Reserved")
    assert len(told.value.message) > 10


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=60))
def test_whatever_is_pasted_is_a_draft_or_a_refusal(text: str) -> None:
    for line in (text, f"gpu-a:0 {text}"):
        with suppress(Refused):  # Any other exception fails the test.
            assert read_draft(line, SLOTS, ZONE, NOW, "Reserved").gpus


def test_the_dialogs_fields_are_read_in_their_zone_and_an_end_may_be_a_length() -> None:
    draft = read(Fields("run", "gpu-a:0-1", "2031-03-30 01:00", "+4h", ZONE), SLOTS, NOW)
    assert isinstance(draft, Draft)
    assert draft.start == datetime(2031, 3, 30, 0, 0, tzinfo=UTC)
    # The clock skips an hour on this night, but the length of a booking is elapsed time.
    assert draft.end - draft.start == timedelta(hours=4)
    assert format_time(draft.end, ZONE) == "2031-03-30 06:00"


def test_every_wrong_field_is_named() -> None:
    wrong = read(Fields(" ", "gpu-z:1", "soon", "later", "Europe/Berlin"), SLOTS, NOW)
    assert isinstance(wrong, dict)
    assert set(wrong) == {"title", "gpus", "start", "end"}
    backwards = read(Fields("x", "gpu-a:0", "2031-01-09 10:00", "2031-01-09 09:00", ZONE), SLOTS, NOW)
    assert isinstance(backwards, dict)
    assert backwards["end"].code == "end_before_start"
    nowhere = read(Fields("x", "gpu-a:0", "now", "+1h", "Europe/Berlyn"), SLOTS, NOW)
    assert isinstance(nowhere, dict)
    assert nowhere["zone"].code == "unknown_zone"


def test_rules_come_back_from_their_fields_as_they_were() -> None:
    rules = Rules(
        longest_h=None,
        quota_gpu_hours=200,
        quotas={"kim": 300.0},
        groups={"students": ("kim", "lee")},
        windows=(Window(("gpu-a:*", "gpu-b:0"), "students", ZONE, (0, 4), "09:00", "18:00"), Window(days=())),
    )
    assert read_form(form_texts(rules), Rules()) == rules


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("longest_h", "many"),
        ("quotas", "kim"),
        ("groups", "students kim"),
        ("windows", "gpu-a:*"),
        ("windows", "gpu-a:* | nobody | daily | 09:00-18:00 | UTC"),
        ("windows", "gpu-a:* | everybody | Mun | 09:00-18:00 | UTC"),
        ("zone", "Europe/Berlyn"),
    ],
)
def test_rules_that_cannot_be_read_are_refused(field: str, text: str) -> None:
    with pytest.raises(UsageError):
        read_form({**form_texts(Rules()), field: text}, Rules())
    assert list(form_problems({**form_texts(Rules()), field: text}, Rules())) == [field]


def test_a_window_without_its_group_is_the_problem_of_the_field_that_was_changed() -> None:
    students = Rules(groups={"students": ("kim",)}, windows=(Window(("gpu-a:*",), "students", ZONE),))
    assert list(form_problems({**form_texts(students), "groups": ""}, students)) == ["groups"]
    assert not form_problems({**form_texts(students), "groups": "", "windows": ""}, students)


def test_rules_without_a_field_stay_when_the_form_is_saved() -> None:
    rules = Rules(enforcement=(Enforcement("gpu-*", "warn"),), same_day_is_free=False)
    assert read_form({**form_texts(rules), "longest_h": "12"}, rules) == replace(rules, longest_h=12)


def test_refusal_by_what_is_loaded_is_the_stores_own(tmp_path: Path) -> None:
    """The window refuses exactly the drafts that the store refuses.

    Otherwise, a drag that looks valid could be refused when it is dropped.
    """
    store = open_store(f"sqlite:///{tmp_path / 'b.sqlite3'}", "kim", clock=lambda: NOW)
    store.remember_slots(SLOTS)
    rules = Rules(longest_h=12, quota_gpu_hours=20, same_day_is_free=False)
    store.set_rules(rules)

    def draft(gpu: str, begin: float, hours: float, owner: str | None = None) -> Draft:
        start = NOW + timedelta(hours=begin)
        return Draft("x", (f"GPU-{gpu}",), start, start + timedelta(hours=hours), ZONE, owner=owner)

    mine, theirs = store.book(draft("a0", 2, 3)), store.book(draft("a1", 2, 3, "lee"))
    store.book(draft("b0", 1, 10))
    seen = store.bookings(NOW - timedelta(days=8), NOW + timedelta(days=30))
    loaded = LoadedCalendar(seen, SLOTS, rules, "kim", True, NOW)
    asked: list[tuple[Draft, Booking | None]] = [
        (draft(gpu, begin, hours), of)
        for gpu in ("a0", "a1", "a2")
        for begin in (-1.0, 0.0, 4.75, 5.0, 26.0)
        for hours in (0.1, 0.25, 3, 9, 13)
        for of in (None, mine, theirs)
    ]
    for wanted, of in asked:
        here = find_loaded_refusal(loaded, wanted, of)
        there = store.refusal(wanted, except_booking=of.id if of else None)
        assert (here and here.code) == (there and there.code), (wanted, of)
    store.close()

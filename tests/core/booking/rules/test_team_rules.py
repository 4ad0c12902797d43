"""Tests of the pure functions for rules, idle release, slot names, times, and usage."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.core.booking.teams import NOW, SLOTS, draft
from torchyard_core.booking.errors import Refused
from torchyard_core.booking.model import Booking, IdleEvidence, State
from torchyard_core.booking.rules.idle_release import Verdict, verdict
from torchyard_core.booking.rules.open_times import Window
from torchyard_core.booking.rules.refusal import Circumstances, find_refusal
from torchyard_core.booking.rules.team_rules import FORM, Rules
from torchyard_core.booking.slots import format_slots, parse_slots
from torchyard_core.booking.time_parser import length, moment
from torchyard_core.booking.usage_report import UsageRow, to_csv
from torchyard_core.errors import UsageError

NIGHTS = Window(("gpu-b",), "students", "Europe/Berlin", (0, 1, 2, 3, 4), "20:00", "08:00")
RULES = Rules(windows=(NIGHTS,), groups={"students": ("kim",)}, longest_h=None)


@pytest.mark.parametrize(
    ("gpus", "starts", "hours", "person", "code"),
    [
        ("b0", 11, 12, "kim", None),  # These are exactly the open times: 20:00 to 08:00 in Berlin.
        ("b0", 11, 12.5, "kim", "window"),
        ("b0", 10.5, 2, "kim", "window"),
        ("b0", 2, 2, "lee", None),  # These open times apply to students, and Lee is none.
        ("a0", 2, 2, "kim", None),  # These open times do not apply to this host.
        ("a0 b0", 2, 2, "kim", "window"),
        ("b0", 24 * 4 + 11, 12, "kim", None),  # The open time of Friday night lasts until Saturday morning.
        ("b0", 24 * 5 + 11, 12, "kim", "window"),  # Saturday night is not open.
    ],
)
def test_windows_bind_whom_and_what_they_name(gpus, starts, hours, person, code):
    refused = find_refusal(draft(gpus, starts, hours), Circumstances(RULES, NOW, SLOTS, person, {}))
    assert (refused and refused.code) == code
    if refused:
        assert refused.hint == "It is open: Mon, Tue, Wed, Thu, Fri 20:00 to 08:00 (Europe/Berlin)."


def test_a_window_stays_where_it_is_on_the_wall_when_clocks_change():
    window = Window(zone="Europe/Berlin", opens="08:00", closes="20:00")
    rules = Rules(windows=(window,))
    for day in (datetime(2026, 3, 28, 7, 0, tzinfo=UTC), datetime(2026, 3, 29, 6, 0, tzinfo=UTC)):
        wanted = draft("a0", 0, 12, start=day)
        assert find_refusal(wanted, Circumstances(rules, day - timedelta(hours=1), SLOTS, "kim", {})) is None
    late = draft("a0", 0, 12, start=datetime(2026, 3, 29, 7, 0, tzinfo=UTC))
    assert find_refusal(late, Circumstances(rules, late.start, SLOTS, "kim", {})).code == "window"


@pytest.mark.parametrize("wrong", [{"gpus": [1]}, {"zone": 1}, {"opens": 9}, {"group": ["students"]}])
def test_a_window_of_the_wrong_kind_is_a_sentence(wrong):
    with pytest.raises(UsageError, match="a window has texts"):
        Rules.from_json({"windows": [wrong]})


def test_rules_are_read_back_and_unknown_ones_are_errors():
    assert Rules.from_json(RULES.to_json()) == RULES
    with pytest.raises(UsageError, match="there is no rule `longest_hours`; did you mean `longest_h`"):
        Rules.from_json({"longest_hours": 3})
    with pytest.raises(UsageError, match="group `students`, which is not there"):
        Rules.from_json({"windows": [{"group": "students"}]})
    with pytest.raises(UsageError, match="is not a time of day"):
        Rules.from_json({"windows": [{"opens": "25:00"}]})
    with pytest.raises(UsageError, match="there is no time zone"):
        Rules.from_json({"zone": "Mars"})


def test_the_table_in_the_docs_has_every_setting_and_the_form_no_other():
    table = (Path(__file__).parents[4] / "docs" / "bookings.md").read_text().partition("## Rules")[2]
    rows = "".join(row.split("|")[1] for row in table.splitlines() if row.startswith("| `"))
    assert set(re.findall(r"`(\w+)`", rows)) == set(Rules().to_json())
    assert {field.setting for field in FORM} == set(Rules().to_json()) - {"enforcement"}


def booking(**more):
    times = {"start": NOW, "end": NOW + timedelta(hours=8), "created": NOW, "changed": NOW}
    fixed = {"id": "b1", "owner": "kim", "title": "t", "purpose": "", "gpus": ("GPU-a0",), "zone": "UTC"}
    return Booking(**{**fixed, **times, "state": State.BOOKED, **more})


@pytest.mark.parametrize(
    ("state", "idle_from", "idle_to", "asked", "expected", "frees"),
    [
        (State.BOOKED, 0, 15, 15, Verdict.FINE, None),
        (State.BOOKED, 0, 22, 22, Verdict.WARN, 30),
        (State.BOOKED, 0, 31, 31, Verdict.NO_SHOW, 30),
        (State.ACTIVE, 60, 91, 91, Verdict.RELEASE, 90),
        # The evidence is from the night, but a desktop evaluates it only in the morning.
        (State.ACTIVE, 60, 91, 300, Verdict.RELEASE, 90),
        (State.BOOKED, 0, 22, 60, Verdict.FINE, None),  # The evidence is too old.
        (State.BOOKED, 0, 31, 600, Verdict.FINE, None),  # The booking has already ended.
        (State.RELEASED, 0, 31, 31, Verdict.FINE, None),
    ],
)
def test_idleness_warns_then_frees_by_what_was_seen(state, idle_from, idle_to, asked, expected, frees):
    def at(minutes: float) -> datetime:
        return NOW + timedelta(minutes=minutes)

    seen = [IdleEvidence("b1", at(idle_from), at(idle_to)), IdleEvidence("other", at(0), at(400))]
    found = verdict(booking(state=state), seen, Rules(), at(asked))
    assert (found.verdict, found.frees_at) == (expected, frees and at(frees))
    assert verdict(booking(state=state), seen, Rules(idle_release_min=None), at(asked)).verdict is Verdict.FINE


def test_of_what_two_reporters_saw_in_one_second_use_counts():
    now = NOW + timedelta(hours=2)
    idle, used = IdleEvidence("b1", NOW, now, "ada"), IdleEvidence("b1", now, now, "kim")
    for seen in ([idle, used], [used, idle]):
        assert verdict(booking(), seen, Rules(), now).verdict is Verdict.FINE


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("gpu-b:2", "b2"),
        ("gpu-a:0-2, gpu-b:3", "a0 a1 a2 b3"),
        ("gpu-a:0,2", "a0 a2"),
        ("gpu-b:*", "b0 b1 b2 b3"),
        ("GPU-a3 gpu-a:3", "a3"),
    ],
)
def test_gpus_are_named_as_commands_name_them(text, ids):
    found = parse_slots(text, SLOTS)
    assert [slot.id for slot in found] == [f"GPU-{one}" for one in ids.split()]
    assert parse_slots(format_slots([slot.id for slot in found], SLOTS), SLOTS) == found


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("gpu-c:0", "no host `gpu-c` has GPUs to book; did you mean `gpu-"),
        ("gpu-a:7", "there is no `gpu-a:7`"),
        ("gpu-a:2-9", "there is no `gpu-a:2-9`"),
        ("gpu-a:cpu", "there is no `gpu-a:cpu`"),
        ("  ", "no GPU is named"),
    ],
)
def test_a_gpu_that_is_not_there_is_refused_with_what_is(text, says):
    with pytest.raises(Refused) as refused:
        parse_slots(text, SLOTS)
    assert says in refused.value.message
    assert refused.value.hint


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("+4h", "2031-01-06T12:00:00+00:00"),
        ("now", "2031-01-06T08:00:00+00:00"),
        ("tomorrow 9", "2031-01-07T08:00:00+00:00"),
        ("tomorrow 09:30", "2031-01-07T08:30:00+00:00"),
        ("18:30", "2031-01-06T17:30:00+00:00"),
        ("2031-07-01 09:00", "2031-07-01T07:00:00+00:00"),
        ("2031-07-01T09:00:00+09:00", "2031-07-01T00:00:00+00:00"),
        ("2031-07-01", "2031-06-30T22:00:00+00:00"),
    ],
)
def test_times_are_read_as_users_write_them(text, expected):
    assert moment(text, "Europe/Berlin", NOW).isoformat() == expected


@pytest.mark.parametrize(
    "text", ["", "9", "soon", "25:00", "2031-13-01", "+4y", "+9999999999h", "9999-12-30 09:00", "+90000w"]
)
def test_what_is_no_time_is_refused(text):
    with pytest.raises(Refused):
        moment(text, "Europe/Berlin", NOW)


def test_lengths_are_read():
    assert length("90m") == timedelta(hours=1.5)
    with pytest.raises(Refused, match="not a length of time"):
        length("long")


def test_usage_as_csv_is_harmless_to_spreadsheets():
    rows = [UsageRow("kim", 8, 3, 5, 0), UsageRow("=cmd()", 1, 1, 0, 0)]
    assert to_csv(rows, "person").splitlines() == [
        "person,booked_gpu_hours,used_gpu_hours,idle_gpu_hours,unbooked_gpu_hours",
        "kim,8.00,3.00,5.00,0.00",
        "'=cmd(),1.00,1.00,0.00,0.00",
    ]

"""Tests of what the calendar shows, without Qt: time axis, lanes, blocks, steps, labels and filters."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta

import pytest

from torchyard_core.booking.model import Booking, IdleEvidence, Slot, State, Use, cpu_slot
from torchyard_gui.bookings.booking_colors import color_number
from torchyard_gui.bookings.calendar.block_painting import label_for
from torchyard_gui.bookings.calendar.blocks import UsageBuilder, blocks_of, free_now, steps, strip_of
from torchyard_gui.bookings.calendar.display_list import DisplayListBuilder
from torchyard_gui.bookings.calendar.keyboard_cursor import Cursor
from torchyard_gui.bookings.calendar.lanes import FOLDED, HOST, LANE, initially_folded, lanes_of
from torchyard_gui.bookings.calendar.time_axis import axis_of, days_of, drag_step, snapped, stepped, zone_mark
from torchyard_gui.bookings.filters import Filter
from torchyard_gui.bridge.bookings_model import CalendarState

MONDAY = datetime(2031, 1, 6, tzinfo=UTC)
HOUR = timedelta(hours=1)
SLOTS = tuple(
    Slot(f"{host}{number}", host, number, "NVIDIA H100 80GB HBM3", 81559) for host in "ab" for number in range(4)
)


def booking(gpus: str, begin: float, end: float, **more: object) -> Booking:
    fields = {
        "id": f"b{gpus}{begin}",
        "owner": "kim",
        "title": "digits",
        "purpose": "",
        "gpus": tuple(gpus.split()),
        "start": MONDAY + begin * HOUR,
        "end": MONDAY + end * HOUR,
        "zone": "UTC",
        "state": State.BOOKED,
        "created": MONDAY,
        "changed": MONDAY,
    }
    return Booking(**(fields | more))  # type: ignore[arg-type]  # The fields have different types.


# Tests of the time axis


@pytest.mark.parametrize(
    ("zone", "day", "hours"),
    [
        ("Europe/Berlin", date(2031, 3, 30), 23),
        ("Europe/Berlin", date(2031, 10, 26), 25),
        ("America/New_York", date(2031, 3, 9), 23),
        ("America/New_York", date(2031, 11, 2), 25),
        ("Asia/Seoul", date(2031, 3, 30), 24),
    ],
)
def test_a_day_with_a_change_of_clocks_is_as_wide_as_any_and_draws_every_moment_once(
    zone: str, day: date, hours: int
) -> None:
    axis = axis_of("week", day, zone, 700)
    column = next(one for one in axis.days if one.date == day)
    assert column.hours == hours
    assert [axis.x_of(one.start) for one in axis.days] == [100.0 * number for number in range(7)]
    quarter = 900.0
    moments = [axis.days[0].start + quarter * number for number in range(int(sum(one.hours for one in axis.days) * 4))]
    places = [axis.x_of(moment) for moment in moments]
    assert places == sorted(set(places))
    assert all(abs(axis.second_at(x) - moment) < 1 for x, moment in zip(places, moments, strict=True))


def test_hours_are_named_where_the_clock_shows_them_on_a_night_that_skips_one() -> None:
    axis = axis_of("day", date(2031, 3, 30), "Europe/Berlin", 1150)
    ticks = {text: x for x, text in axis.ticks()}
    # This day has 23 hours, so 06:00 is five hours after midnight.
    assert ticks["06"] == pytest.approx(5 / 23 * 1150)


def test_a_week_has_its_day_in_the_first_third_and_a_month_all_its_days() -> None:
    sunday = date(2026, 11, 22)
    assert days_of("week", sunday)[0] == date(2026, 11, 20)
    assert len(days_of("week", sunday)) == 7
    assert days_of("agenda", sunday)[0] == sunday
    assert len(days_of("month", date(2028, 2, 10))) == 29
    assert stepped("month", date(2026, 12, 31), 1) == date(2027, 1, 31)
    assert stepped("month", date(2027, 1, 31), 1) == date(2027, 2, 28)
    assert stepped("week", date(2026, 11, 25), -1) == date(2026, 11, 18)


def test_what_is_drawn_goes_by_quarters_of_an_hour() -> None:
    base = MONDAY.timestamp()
    assert snapped(base + 7 * 60) == base
    assert snapped(base + 8 * 60) == base + 900
    india = axis_of("week", MONDAY.date(), "Asia/Kolkata", 700)
    assert india.snapped(base + 10 * 60, 3600) == base + 1800, "05:40 in India is nearest to 06:00"
    assert (drag_step("day"), drag_step("week"), drag_step("week", is_fine=True)) == (900, 3600, 900)
    assert zone_mark(MONDAY, "Asia/Seoul") == "KST (UTC+9)"
    assert zone_mark(MONDAY, "UTC") == "UTC"
    assert zone_mark(MONDAY, "Asia/Kolkata") == "IST (UTC+5:30)"


# Tests of lanes and blocks


def test_lanes_lie_below_their_host_and_a_folded_host_is_one_row() -> None:
    lanes = lanes_of([*SLOTS, cpu_slot("aaa")], folded={"b"})
    assert [(row.kind, row.host, row.height) for row in lanes.rows] == [
        ("host", "a", HOST),
        *[("lane", "a", LANE)] * 4,
        ("folded", "b", FOLDED),
        ("host", "aaa", HOST),
        ("lane", "aaa", LANE),
    ]
    assert lanes.row_at(HOST + LANE + 1) is lanes.lanes[1]
    assert lanes.row_at(lanes.height) is None
    assert lanes.lane_at(3) is lanes.lanes[0]
    assert lanes.number_of("b0") == -1


def test_adjacent_lanes_of_one_booking_are_one_block_and_others_are_apart() -> None:
    lanes = lanes_of(SLOTS)
    blocks = blocks_of(booking("a0 a1 a3 b0", 1, 2), lanes)
    assert [[slot.id for slot in block.slots] for block in blocks] == [["a0", "a1"], ["a3"], ["b0"]]
    first = blocks[0]
    assert first.bottom - first.top == 2 * LANE


def test_a_cancelled_booking_is_not_drawn_and_a_released_one_up_to_its_release() -> None:
    lanes = lanes_of(SLOTS)
    released = booking("a0", 1, 9, state=State.RELEASED, let_go_at=MONDAY + 3 * HOUR)
    assert blocks_of(booking("a1", 1, 9, state=State.CANCELLED), lanes) == []
    assert [block.end for block in blocks_of(released, lanes)] == [(MONDAY + 3 * HOUR).timestamp()]


def test_a_folded_host_counts_its_booked_slots_in_steps() -> None:
    found = steps([booking("a0", 0, 4).interval] * 3 + [booking("a3", 2, 4).interval])
    assert [((one.start - MONDAY) / HOUR, (one.end - MONDAY) / HOUR, count) for one, count in found] == [
        (0, 2, 3),
        (2, 4, 4),
    ]


def test_free_now_counts_neither_booked_nor_used_gpus_nor_cpus() -> None:
    now = MONDAY + HOUR
    assert free_now([*SLOTS, cpu_slot("c")], [booking("a0 a1", 0, 4), booking("a2", 5, 6)], {"b3"}, now) == (5, 8)


def test_use_is_drawn_over_the_booking_and_unobserved_time_is_not_called_idle() -> None:
    one, other = booking("a0 a1", 0, 8), booking("b0", 0, 8, id="unseen")
    uses = [
        Use("a0", "a", "kim", MONDAY, MONDAY + 2 * HOUR),
        Use("a1", "a", "kim", MONDAY + 5 * HOUR, MONDAY + 6 * HOUR),
        Use("a3", "a", "lee", MONDAY + HOUR, MONDAY + 2 * HOUR),
    ]
    found = UsageBuilder().of(uses, [one, other], (), [], MONDAY + 7 * HOUR)
    assert [((gap.start - MONDAY) / HOUR, (gap.end - MONDAY) / HOUR) for gap in found.idle[one.id]] == [(2, 5)]
    assert "unseen" not in found.idle
    assert list(found.unbooked) == ["a3"]
    block = blocks_of(one, lanes_of(SLOTS))[0]
    assert [share for _, _, share in strip_of(block, found.used)] == [0.5, 0.5]


def test_evidence_and_a_no_show_are_idle() -> None:
    warned = booking("a0", 0, 8, id="warned")
    no_show = booking("a1", 0, 8, id="gone", state=State.NO_SHOW, let_go_at=MONDAY + HOUR)
    evidence = [IdleEvidence("warned", MONDAY + HOUR, MONDAY + 2 * HOUR)]
    found = UsageBuilder().of([], [warned, no_show], (), evidence, MONDAY + 2 * HOUR)
    assert {key: (times[0].end - times[0].start) / HOUR for key, times in found.idle.items()} == {
        "warned": 1,
        "gone": 1,
    }


def test_a_person_has_the_same_hue_everywhere_and_five_are_used() -> None:
    assert color_number("vision") == 0
    assert {color_number(f"person{number}") for number in range(40)} == set(range(5))


def test_a_large_fleet_is_folded_at_first_but_for_ones_own_hosts() -> None:
    many = [Slot(f"{host}-{number}", f"n{host:03}", number) for host in range(20) for number in range(8)]
    assert initially_folded(many, {"n003"}) == {f"n{host:03}" for host in range(20)} - {"n003"}
    assert initially_folded([*SLOTS, cpu_slot("c")]) == {"c"}


# Tests of labels, filters and the keyboard cursor


def measure(text: str, bold: bool) -> float:
    return len(text) * 7.0


@pytest.mark.parametrize(
    ("width", "height", "beside", "said"),
    [
        (300, 80, 0, ("ViT-L pretraining", "vision · 4 GPUs · to 18:00", "", "")),
        (150, 80, 0, ("ViT-L pretraining", "vision · 4 GPUs", "", "")),
        (125, 80, 0, ("ViT-L pretraining", "vision · 4 GPUs", "", "")),
        (60, 80, 0, ("ViT-L pretraining", "vision", "", "")),
        (20, 80, 90, ("", "", "v", "ViT-L pretraining")),
        (20, 80, 0, ("", "", "v", "")),
        (3, 80, 0, ("", "", "", "")),
        (300, 18, 0, ("ViT-L pretraining", "vision · to 18:00", "", "")),
        (60, 18, 0, ("", "vision", "", "")),
    ],
)
def test_labels_fall_back_from_title_to_initial(
    width: float, height: float, beside: float, said: tuple[str, str, str, str]
) -> None:
    found = label_for(width, height, "ViT-L pretraining", "vision", "4 GPUs", "to 18:00", beside, measure)
    assert (found.title, found.more, found.initial, found.outside) == said


def test_a_filter_chooses_lanes_by_host_and_model_and_bookings_by_person_and_title() -> None:
    slots = [*SLOTS, Slot("c0", "c", 0, "NVIDIA A100-SXM4-40GB", 40960)]
    assert {slot.host for slot in Filter(models=frozenset({"A100 40 GB"})).slots(slots)} == {"c"}
    assert {slot.host for slot in Filter(hosts=frozenset({"a"})).slots(slots)} == {"a"}
    mine = booking("a0", 0, 1, title="ViT-L pretraining", purpose="for the paper")
    assert Filter(text="paper vit").matches(mine)
    assert not Filter(persons=frozenset({"lee"})).matches(mine)


def test_the_keyboards_place_moves_extends_and_never_turns_inside_out() -> None:
    cursor = Cursor(0, 0, 0.0, 3600.0)
    assert cursor.moved(1, 0, 8) == Cursor(1, 1, 0.0, 3600.0)
    assert cursor.moved(-1, 0, 8).lane == 0
    assert cursor.moved(0, 2, 8) == Cursor(0, 0, 1800.0, 5400.0)
    assert cursor.extended(2, 0, 8).lanes == range(0, 3)
    assert cursor.extended(0, -99, 8).end == 900.0
    assert cursor.with_edges(start=-1).start == -900.0
    assert cursor.with_edges(end=-99) == cursor


# Tests of transitions between two display lists


def test_a_picture_that_is_made_of_the_last_one_is_the_same_as_a_new_one() -> None:
    dice = random.Random(7)
    pictures = DisplayListBuilder()
    seen = CalendarState(slots=SLOTS, zone="UTC", person="kim")
    now, folded, chosen = MONDAY + 20 * HOUR, frozenset({"b"}), Filter()
    for number in range(300):
        known = list(seen.bookings)
        act = dice.choice(("add", "add", "change", "end", "remove", "use", "evidence", "fold", "filter", "wait"))
        if act == "add" or not known:
            gpus = " ".join(dice.sample([slot.id for slot in SLOTS], dice.randint(1, 4)))
            begin = dice.randint(0, 40)
            known.append(booking(gpus, begin, begin + dice.randint(1, 9), id=f"n{number}", title=dice.choice("ab")))
        elif act in ("change", "end", "remove"):
            place = dice.randrange(len(known))
            one = known.pop(place)
            if act == "change":
                known.insert(place, replace(one, gpus=("a0", "b3"), start=one.start + HOUR, end=one.end + HOUR))
            elif act == "end":
                known.insert(place, replace(one, state=dice.choice((State.CANCELLED, State.NO_SHOW))))
        elif act == "use":
            begin = dice.randint(0, 19)
            use = Use(f"a{dice.randrange(4)}", "a", "kim", MONDAY + begin * HOUR, MONDAY + (begin + 1) * HOUR)
            seen = replace(seen, uses=(*seen.uses, use))
        elif act == "evidence":
            one = dice.choice(known)
            seen = replace(seen, idle=(IdleEvidence(one.id, one.start, one.start + HOUR, "kim"),))
        elif act == "fold":
            folded = frozenset(dice.sample(("a", "b"), dice.randint(0, 2)))
        elif act == "filter":
            chosen = Filter(text=dice.choice(("", "a", "b")))
        else:
            now += dice.randint(1, 90) * timedelta(minutes=1)
        seen = replace(seen, bookings=tuple(known))
        from_scratch = DisplayListBuilder().of(seen, now, folded, chosen, {}, {})
        assert pictures.of(seen, now, folded, chosen, {}, {}) == from_scratch, act

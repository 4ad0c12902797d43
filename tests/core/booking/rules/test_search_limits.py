"""Tests that the slots that are proposed by a search, after a conflict or from the waitlist obey the team's rules."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from tests.core.booking.teams import NOW, SLOTS, draft
from tests.core.booking.test_launch_availability import HOSTS, ONE, planned
from torchyard_core.booking.errors import Refused
from torchyard_core.booking.intervals import Interval
from torchyard_core.booking.launch_booking import LaunchBooking
from torchyard_core.booking.model import Draft
from torchyard_core.booking.rules.open_times import Window, check_windows
from torchyard_core.booking.rules.quota import check_quota
from torchyard_core.booking.rules.search_limits import Allowance, closed_starts, taken_or_closed, within_rules
from torchyard_core.booking.rules.team_rules import Rules
from torchyard_core.booking.search.conflict import Clash
from torchyard_core.booking.search.slot_search import Wish, find_slots
from torchyard_core.booking.sync.cached_calendar import Calendar
from torchyard_core.booking.zone_weeks import week_of
from torchyard_core.launch.calendar_interface import BookingOptions

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
WEEK_ENDS = NOW + 6 * DAY + 15 * HOUR
"""The end of the week in the time zone Europe/Berlin."""
DAYS = 3
NIGHTS = Window(("gpu-b",), "students", "Europe/Berlin", (0, 1, 2, 3, 4), "20:00", "08:00")
RULES = Rules(windows=(NIGHTS,), groups={"students": ("kim",)}, furthest_days=30)
ON_B = Wish(4, 6 * HOUR, NOW, hosts=("gpu-b",))


def with_rules(team, rules: Rules = RULES) -> None:
    team.open("ada").set_rules(rules)


def test_a_place_is_offered_only_while_its_gpus_are_open_to_who_asks(team):
    with_rules(team)
    kim, lee = team.open("kim"), team.open("lee")
    evening = NOW + 11 * HOUR  # 20:00 in Berlin.
    starts = [evening, evening + 6 * HOUR, evening + 24 * HOUR, evening + 30 * HOUR, evening + 48 * HOUR]
    assert [fit.start for fit in kim.find(ON_B)] == starts
    assert lee.find(ON_B)[0].start == NOW
    assert kim.find(replace(ON_B, hosts=()))[0] == lee.find(replace(ON_B, hosts=("gpu-a",)))[0]
    for fit in kim.find(ON_B):
        assert kim.refusal(replace(draft("", 0, 0), gpus=fit.gpus, start=fit.start, end=fit.end)) is None
    lee.book(draft("b0 b1 b2 b3", 10, 15))
    # No slot is free, but the request is not refused, because Lee may still cancel the booking.
    assert kim.find(replace(ON_B, latest=evening + 12 * HOUR)) == ()
    for act in (kim.find, lambda wish: kim.wait(wish, "kim waits")):
        with pytest.raises(Refused, match="the rules never leave kim 4 such GPUs for 13 h in that time") as refused:
            act(replace(ON_B, length=13 * HOUR))  # The GPUs are open for 12 hours each night.
        assert "They are open: Mon, Tue, Wed, Thu, Fri 20:00 to 08:00 (Europe/Berlin)." in refused.value.hint
        with pytest.raises(Refused, match=r"6 h do not fit from Mon 6 Jan 08:00 to 13:00"):
            act(replace(ON_B, latest=NOW + 5 * HOUR))
    assert kim.waiting() == ()


def test_after_a_clash_the_nearest_places_are_open_ones(team):
    with_rules(team)
    team.open("lee").book(draft("b0 b1 b2 b3", 12, 2))
    with pytest.raises(Clash) as clash:
        team.open("kim").book(draft("b0", 12, 11))
    # The night after Lee's booking has fewer than 11 hours left, so the nearest slot is in the following night.
    assert clash.value.conflict.nearest[0].start == NOW + 35 * HOUR


def test_an_entry_for_closed_gpus_is_served_when_they_open_and_delays_no_other(team):
    with_rules(team)
    kim, lee = team.open("kim"), team.open("lee")
    kim.wait(ON_B, "kim waits")
    team.clock.forward(minutes=1)
    lee.wait(replace(ON_B, length=2 * HOUR), "lee waits")
    served = {one.owner: one.start for one in team.open("ada").serve_waiting()}
    assert served == {"kim": NOW + 11 * HOUR, "lee": team.clock.now}


def test_nothing_is_offered_further_ahead_or_longer_than_can_be_booked(team):
    with_rules(team)
    lee = team.open("lee")
    lee.book(draft("b0 b1 b2 b3", 0, 160))
    with pytest.raises(Refused, match="at most 30 days ahead"):
        lee.find(replace(ON_B, earliest=NOW + timedelta(days=29, hours=19)))
    assert len(lee.find(replace(ON_B, earliest=NOW + timedelta(days=29, hours=12)))) == 2
    for act in (lee.find, lambda wish: lee.wait(wish, "too long")):
        with pytest.raises(Refused, match="at most 7 days long"):
            act(replace(ON_B, length=169 * HOUR))
    assert lee.waiting() == ()


def test_no_place_is_offered_that_ones_quota_would_refuse(team):
    with_rules(team, Rules(quota_gpu_hours=30, zone="Europe/Berlin"))
    kim, lee = team.open("kim"), team.open("lee")
    mine = kim.book(draft("a0 a1", 24, 5))
    tomorrow = replace(ON_B, earliest=NOW + DAY)
    # 20 GPU-hours are left this week, which is five hours of four GPUs. The sixth hour must therefore be on Monday.
    sunday = NOW + 6 * DAY + 10 * HOUR
    fits = kim.find(tomorrow, zone="Europe/Berlin")
    assert [fit.start for fit in fits] == [sunday + number * 6 * HOUR for number in range(5)]
    for fit in fits:
        wanted = replace(draft("", 0, 0), gpus=fit.gpus, start=fit.start, end=fit.end)
        assert kim.refusal(wanted) is None
    assert kim.refusal(replace(wanted, start=sunday - HOUR, end=sunday + 5 * HOUR)).code == "quota"
    assert kim.find(ON_B, zone="Europe/Berlin")[0].start == NOW  # A booking on the same day needs no quota.
    assert lee.find(tomorrow)[0].start == NOW + DAY

    lee.book(draft("b0", 24, 5))
    with pytest.raises(Clash) as clash:
        kim.book(draft("b0 b1 b2 b3", 24, 5))
    nearest = clash.value.conflict.nearest
    assert nearest
    assert all(kim.refusal(replace(wanted, gpus=fit.gpus, start=fit.start, end=fit.end)) is None for fit in nearest)
    for act in (kim.find, lambda wish: kim.wait(wish, "kim waits")):
        with pytest.raises(Refused, match="kim has 10 of 30 GPU-hours in the week of 6 Jan, and this booking takes 24"):
            act(replace(tomorrow, latest=NOW + 5 * DAY))

    # When a booking is moved, the quota that it used at its old time becomes available.
    with_rules(team, Rules(quota_gpu_hours=10, zone="Europe/Berlin"))
    lee.book(draft("a0", 48, 1))
    with pytest.raises(Clash) as clash:
        kim.change(mine.id, start=NOW + 2 * DAY, end=NOW + 2 * DAY + 5 * HOUR)
    assert clash.value.conflict.nearest[0].start < NOW + 3 * DAY


def test_gpus_beyond_a_quota_stay_free_for_the_next_entries(team):
    with_rules(team, Rules(quota_gpu_hours=10, zone="Europe/Berlin"))
    kim, lee = team.open("kim"), team.open("lee")
    wish = replace(ON_B, length=2 * HOUR, earliest=NOW + DAY)
    for person in (kim, kim, lee):
        person.wait(wish, "waits", "Europe/Berlin")
        team.clock.forward(minutes=1)
    kim.book(draft("a0", 24, 3))
    served = [(one.owner, one.start) for one in team.open("ada").serve_waiting()]
    # Kim has 7 GPU-hours left this week. Kim's first request uses them for 105 min on four GPUs, and next week's quota
    # for the last 15 min. Kim's second request uses only next week's quota.
    assert served == [("kim", WEEK_ENDS - 1.75 * HOUR), ("kim", WEEK_ENDS + 0.25 * HOUR), ("lee", NOW + DAY)]


hours = some.integers(0, 23)
a_window = some.builds(
    Window,
    gpus=some.sampled_from([("gpu-a",), ("gpu-b:0", "gpu-b:1"), ("gpu-*",)]),
    group=some.sampled_from(["*", "students"]),
    zone=some.sampled_from(["UTC", "Europe/Berlin", "Asia/Seoul"]),
    days=some.lists(some.integers(0, 6), unique=True, max_size=7).map(tuple),
    opens=hours.map("{:02}:00".format),
    closes=hours.map("{:02}:00".format),
)


@given(some.lists(a_window, max_size=3), some.sampled_from(["kim", "lee"]), some.integers(1, 4), some.integers(1, 30))
@settings(deadline=None, max_examples=60)
def test_the_first_fit_is_the_first_hour_at_which_the_rules_let_enough_gpus_be_booked(
    all_windows, person, count, length
):
    rules = replace(RULES, windows=tuple(all_windows), furthest_days=DAYS)
    wish = within_rules(Wish(count, length * HOUR, NOW), rules, NOW)
    free = taken_or_closed({}, SLOTS, Interval(NOW, NOW + timedelta(days=DAYS)), rules, person)
    fits = find_slots(wish, SLOTS, free)

    def enough(start: int) -> bool:
        there = Interval(NOW + start * HOUR, NOW + (start + length) * HOUR)
        open_on = [slot.host for slot in SLOTS if check_windows([slot.id], there, rules, person, SLOTS) is None]
        return max(open_on.count(host) for host in ("gpu-a", "gpu-b")) >= count

    first = next((start for start in range(24 * DAYS - length + 1) if enough(start)), None)
    assert (fits[0].start if fits else None) == (None if first is None else NOW + first * HOUR)
    for fit in fits:
        assert check_windows(fit.gpus, Interval(fit.start, fit.end), rules, person, SLOTS) is None


def test_a_launch_that_books_takes_gpus_that_are_open(tmp_path):
    calendar = Calendar(f"sqlite:///{tmp_path / 'bookings.sqlite3'}", "kim", tmp_path / "kept.json")
    calendar.store().set_rules(Rules(windows=(Window(("gpu-a",), days=()),)))

    def hosts(length: timedelta | None) -> list[str]:
        ways = LaunchBooking(calendar, "UTC", BookingOptions(length=length)).choices(HOSTS)
        return [planned(ONE, way).replicas[0].host for way in ways]

    assert hosts(HOUR) == ["gpu-b"]
    # A run without a booking may use GPUs even at times for which the rules allow no bookings.
    assert hosts(None) == ["gpu-b", "gpu-a"]
    calendar.close()


zones = some.sampled_from(["UTC", "Europe/Berlin", "Asia/Seoul"])


@given(
    count=some.integers(1, 8),
    length=some.integers(1, 200),
    limit=some.integers(0, 400),
    spent=some.lists(some.integers(0, 200), min_size=4, max_size=4),
    rules=some.builds(Rules, same_day_is_free=some.booleans(), zone=zones),
    zone=zones,
    now=some.integers(0, 24 * 14).map(lambda hours: NOW + hours * HOUR),
)
@settings(deadline=None, max_examples=40)
def test_a_quota_closes_exactly_the_starts_at_which_it_would_refuse(count, length, limit, spent, rules, zone, now):
    rules = replace(rules, quotas={"kim": limit})
    has = {week_of(NOW + number * 7 * DAY, rules.zone): hours for number, hours in enumerate(spent)}
    wish = Wish(count, length * HOUR, NOW, latest=NOW + 16 * DAY)
    closed = closed_starts(wish, SLOTS, rules, "kim", Allowance(has, now, zone))
    gpus = tuple(slot.id for slot in SLOTS[:count])
    for number in range(16 * 24 - length + 1):
        start = NOW + number * HOUR
        refused = check_quota(Draft("x", gpus, start, start + wish.length, zone), rules, now, "kim", has)
        assert any(part.contains(start) for part in closed) == (refused is not None), (start, refused)

"""What looks for free places offers none that the rules would refuse: in a search, after a clash, and to who waits."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from tests.core.booking.teams import NOW, SLOTS, draft
from torchyard_core.booking.find_slot import Wish, find_slots
from torchyard_core.booking.intervals import Interval
from torchyard_core.booking.open_times import taken_or_closed, within_rules
from torchyard_core.booking.refusals import Clash, Refused
from torchyard_core.booking.rules import Rules, Window, windows

HOUR = timedelta(hours=1)
DAYS = 3
NIGHTS = Window(("gpu-b",), "students", "Europe/Berlin", (0, 1, 2, 3, 4), "20:00", "08:00")
RULES = Rules(windows=(NIGHTS,), groups={"students": ("kim",)}, furthest_days=30)
ON_B = Wish(4, 6 * HOUR, NOW, hosts=("gpu-b",))


def with_rules(team, rules: Rules = RULES) -> None:
    team.open("ada").set_rules(rules)


def test_a_place_is_offered_only_while_its_gpus_are_open_to_who_asks(team):
    with_rules(team)
    kim, lee = team.open("kim"), team.open("lee")
    evening = NOW + 11 * HOUR  # 20:00 in Berlin
    starts = [evening, evening + 6 * HOUR, evening + 24 * HOUR, evening + 30 * HOUR, evening + 48 * HOUR]
    assert [fit.start for fit in kim.find(ON_B)] == starts
    assert lee.find(ON_B)[0].start == NOW
    assert kim.find(replace(ON_B, hosts=()))[0] == lee.find(replace(ON_B, hosts=("gpu-a",)))[0]
    for fit in kim.find(ON_B):
        assert kim.refusal(replace(draft("", 0, 0), gpus=fit.gpus, start=fit.start, end=fit.end)) is None
    assert kim.find(replace(ON_B, length=13 * HOUR)) == ()  # no night is so long


def test_after_a_clash_the_nearest_places_are_open_ones(team):
    with_rules(team)
    team.open("lee").book(draft("b0 b1 b2 b3", 12, 2))
    with pytest.raises(Clash) as clash:
        team.open("kim").book(draft("b0", 12, 11))
    # Right after Lee's there are not 11 hours of that night left: it is the next.
    assert clash.value.conflict.nearest[0].start == NOW + 35 * HOUR


def test_who_waits_for_what_is_closed_gets_it_when_it_opens_and_is_in_nobodys_way(team):
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
    assert lee.find(replace(ON_B, earliest=NOW + timedelta(days=29, hours=19))) == ()
    assert len(lee.find(replace(ON_B, earliest=NOW + timedelta(days=29, hours=12)))) == 2
    for act in (lee.find, lambda wish: lee.wait(wish, "too long")):
        with pytest.raises(Refused, match="at most 7 days long"):
            act(replace(ON_B, length=169 * HOUR))
    assert lee.waiting() == ()


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
        open_on = [slot.host for slot in SLOTS if windows([slot.id], there, rules, person, SLOTS) is None]
        return max(open_on.count(host) for host in ("gpu-a", "gpu-b")) >= count

    first = next((start for start in range(24 * DAYS - length + 1) if enough(start)), None)
    assert (fits[0].start if fits else None) == (None if first is None else NOW + first * HOUR)
    for fit in fits:
        assert windows(fit.gpus, Interval(fit.start, fit.end), rules, person, SLOTS) is None

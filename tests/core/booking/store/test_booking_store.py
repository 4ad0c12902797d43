"""Tests of the booking store in both databases: bookings, changes, conflicts, rules, the waitlist and usage."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import event

from tests.core.booking.teams import NOW, SLOTS, Clock, Team, draft
from torchyard_core.booking.errors import PermissionDenied, Refused
from torchyard_core.booking.model import Draft, IdleEvidence, Login, Slot, State, Use
from torchyard_core.booking.rules.team_rules import Rules
from torchyard_core.booking.search.conflict import Clash
from torchyard_core.booking.search.slot_search import Wish, find_slots
from torchyard_core.booking.store import open_store, transfer_all
from torchyard_core.errors import UsageError

HOUR = timedelta(hours=1)


def everything(store):
    return store.bookings(NOW - timedelta(days=400), NOW + timedelta(days=400))


def admin_of(team: Team):
    return team.open("ada")


def test_a_booking_is_read_back_as_it_was_made(team):
    made = team.open("kim").book(draft("b1 a0", 1, 3, "digits", purpose="thesis", run_id="r1", stop_at_end=True))
    read = team.open("lee").booking(made.id)
    assert read == made
    assert (read.owner, read.gpus, read.state) == ("kim", ("GPU-a0", "GPU-b1"), State.BOOKED)
    assert (read.start, read.end, read.zone) == (NOW + HOUR, NOW + 4 * HOUR, "Europe/Berlin")
    assert (read.purpose, read.run_id, read.stop_at_end) == ("thesis", "r1", True)


def test_bookings_that_touch_do_not_clash(team):
    store = team.open("kim")
    store.book(draft("a0", 1, 1))
    store.book(draft("a0", 2, 1))
    store.book(draft("a0", 0, 1))
    assert len(everything(store)) == 3


def test_a_conflict_says_which_gpus_whose_booking_when_and_what_is_free_nearby(team):
    first = team.open("kim").book(draft("a0 a1", 1, 3))
    with pytest.raises(Clash) as refused:
        team.open("lee").book(draft("a1 a2", 2, 1))
    conflict = refused.value.conflict
    assert [(one.booking, one.gpus) for one in conflict.clashing] == [(first, ("GPU-a1",))]
    assert refused.value.message == "gpu-a:1 is booked by kim ('digits') from Mon 6 Jan 10:00 to 13:00 (Europe/Berlin)."
    assert [(fit.gpus, fit.start) for fit in conflict.nearest][:2] == [
        (("GPU-a2", "GPU-a3"), NOW + 2 * HOUR),
        (("GPU-a1", "GPU-a2"), NOW + 4 * HOUR),
    ]
    assert refused.value.hint.startswith("Free nearby: gpu-a:2-3 from Mon 6 Jan 11:00 to 12:00; ")
    assert len(everything(team.open("kim"))) == 1


def test_every_way_to_overlap_clashes(team):
    store = team.open("kim")
    store.book(draft("a0", 2, 4))
    for starts, hours in ((1, 2), (2, 4), (3, 1), (5, 3), (1, 9), (2, 1), (4, 2)):
        with pytest.raises(Clash):
            store.book(draft("a0", starts, hours))
    assert len(everything(store)) == 1


def test_what_was_let_go_can_be_booked_by_others(team):
    kim, lee = team.open("kim"), team.open("lee")
    later = kim.book(draft("a0", 2, 2))
    running = kim.book(draft("a1", 0, 4))
    assert kim.cancel(later.id).state is State.CANCELLED
    team.clock.forward(hours=1)
    released = kim.release(running.id)
    assert (released.state, released.until) == (State.RELEASED, NOW + HOUR)
    lee.book(draft("a0 a1", 2, 2))
    with pytest.raises(Refused, match="was released"):
        kim.release(running.id)


def test_a_coming_booking_moves_whole_or_not_at_all(team):
    store = team.open("kim")
    moving = store.book(draft("a0 a1", 1, 2))
    store.book(draft("a2", 5, 2))
    moved = store.change(moving.id, start=NOW + 2 * HOUR, end=NOW + 4 * HOUR, gpus=["GPU-a1", "GPU-a2"])
    assert store.booking(moving.id) == moved
    with pytest.raises(Clash):
        store.change(moving.id, start=NOW + 4 * HOUR, end=NOW + 6 * HOUR)
    assert store.booking(moving.id) == moved
    assert store.book(draft("a0", 2, 2))
    with pytest.raises(Clash):
        store.book(draft("a1", 2, 1))


def test_a_moved_booking_may_overlap_where_it_was(team):
    store = team.open("kim")
    made = store.book(draft("a0", 1, 4))
    assert store.change(made.id, start=NOW + 2 * HOUR, end=NOW + 6 * HOUR).end == NOW + 6 * HOUR


def test_a_running_booking_is_shortened_and_extended_but_not_moved(team):
    store = team.open("kim")
    made = store.book(draft("a0", 0, 4))
    store.book(draft("a0", 8, 1))
    team.clock.forward(hours=1)
    assert store.change(made.id, end=NOW + 3 * HOUR).end == NOW + 3 * HOUR
    assert store.change(made.id, end=NOW + 8 * HOUR).end == NOW + 8 * HOUR
    with pytest.raises(Clash):
        store.change(made.id, end=NOW + 9 * HOUR)
    for change in ({"start": NOW + HOUR}, {"gpus": ["GPU-a1"]}, {"gpus": ["GPU-a0", "GPU-a1"]}):
        with pytest.raises(Refused, match="it can be shortened or extended, not moved"):
            store.change(made.id, **change)
    with pytest.raises(Refused, match="would end in the past"):
        store.change(made.id, end=NOW + HOUR / 2)
    team.clock.forward(hours=8)
    with pytest.raises(Refused, match="the past stays as it was"):
        store.change(made.id, title="other")


@pytest.mark.parametrize(
    ("wrong", "code", "says"),
    [
        (draft("a0", 2, -1), "end_before_start", "ends at or before its start"),
        (draft("a0", 2, 0), "end_before_start", "ends at or before its start"),
        (draft("a0", -1, 3), "past", "begins in the past"),
        (draft("a0", 1, 0.2), "too_short", "at least 15 min"),
        (draft("a0", 1, 500), "too_long", "at most 7 days long"),
        (draft("a0", 24 * 100, 1), "too_far", "at most 90 days ahead"),
        (draft("a9", 1, 1), "unknown_gpu", "did you mean `GPU-"),
        (draft("", 1, 1), "no_gpus", "names no GPU"),
        (draft("a0", 1, 1, zone="Europe/Berln"), "unknown_zone", "did you mean `Europe/Berlin`"),
        (draft("a0", 1, 1, "  "), "no_title", "has no title"),
    ],
)
def test_what_cannot_be_booked_is_refused_in_words_and_changes_nothing(team, wrong, code, says):
    store = team.open("kim")
    with pytest.raises(Refused) as refused:
        store.book(wrong)
    assert refused.value.code == code
    assert says in refused.value.sentence()
    assert refused.value.hint
    assert store.refusal(wrong).code == code
    assert everything(store) == ()


def test_a_quota_counts_what_the_week_has_and_leaves_the_same_day_free(team):
    admin_of(team).set_rules(Rules(quota_gpu_hours=10, quotas={"lee": 100}))
    kim = team.open("kim")
    kim.book(draft("a0 a1", 24, 4))
    with pytest.raises(Refused) as refused:
        kim.book(draft("b0 b1", 48, 2))
    assert refused.value.code == "quota"
    assert "kim has 8 of 10 GPU-hours in the week of 6 Jan, and this booking takes 4 more" in refused.value.message
    assert "Book 1 h or less of these GPUs" in refused.value.hint
    kim.book(draft("cpu", 48, 20))
    kim.book(draft("b0 b1 b2 b3", 1, 8))
    kim.book(draft("b0 b1", 24 * 7, 4))
    team.open("lee").book(draft("b0 b1", 48, 4))


def test_a_series_books_the_free_ones_and_lists_the_clashes(team):
    team.open("lee").book(draft("a0", 49, 1, "lee's"))
    kim = team.open("kim")
    with pytest.raises(Clash):
        kim.book_series(draft("a0 a1", 1, 2), "FREQ=DAILY;COUNT=4")
    assert len(everything(kim)) == 1
    found = kim.book_series(draft("a0 a1", 1, 2), "FREQ=DAILY;COUNT=4", free_ones=True)
    assert [one.start for one in found.booked] == [NOW + timedelta(days=day, hours=1) for day in (0, 1, 3)]
    (missed,) = found.missed
    assert missed.interval.start == NOW + timedelta(days=2, hours=1)
    assert "booked by lee" in missed.why.message
    series, of_it = kim.series(found.series_id)
    assert (series.rule, of_it) == ("FREQ=DAILY;COUNT=4", found.booked)
    team.clock.forward(days=1, hours=2)
    assert [one.start for one in kim.cancel_series(series.id)] == [NOW + timedelta(days=3, hours=1)]


def test_a_series_beyond_the_horizon_is_refused_or_its_rest_is_listed(team):
    kim = team.open("kim")
    with pytest.raises(Refused, match=r"number 14 of the 30 bookings of the series, on .*, is refused") as refused:
        kim.book_series(draft("a0", 25, 2), "FREQ=WEEKLY;COUNT=30")
    assert refused.value.code == "too_far"
    assert "at most 90 days ahead" in refused.value.message
    assert kim.count() == 0

    found = kim.book_series(draft("a0", 25, 2), "FREQ=WEEKLY;COUNT=30", free_ones=True)
    assert (len(found.booked), len(found.missed)) == (13, 17)
    assert {one.why.code for one in found.missed} == {"too_far"}
    # A recurrence without an end is booked up to the horizon. A recurrence that begins beyond the horizon is refused.
    endless = kim.book_series(draft("a1", 25, 2), "FREQ=WEEKLY")
    assert (len(endless.booked), endless.missed) == (len(found.booked), ())
    for rule in ("FREQ=WEEKLY", "FREQ=WEEKLY;COUNT=3", "FREQ=WEEKLY;UNTIL=20330101"):
        with pytest.raises(Refused, match="at most 90 days ahead"):
            kim.book_series(draft("a2", 24 * 400, 2), rule)


def test_without_a_horizon_a_series_may_begin_and_go_on_after_a_year(team):
    admin = team.open("ada")
    admin.set_rules(Rules(furthest_days=None))
    found = admin.book_series(draft("a0", 24 * 400, 2), "FREQ=MONTHLY;COUNT=30")
    assert len(found.booked) == 30
    assert found.booked[-1].start.year == 2034
    assert len(admin.book_series(draft("a1", 24 * 400, 2), "FREQ=WEEKLY").booked) == 53


def test_a_series_is_changed_from_one_on_or_all_of_it_or_not_at_all(team):
    kim = team.open("kim")
    made = kim.book_series(draft("a0", 1, 22), "FREQ=DAILY;COUNT=5").booked
    # Each occurrence moves by a day, to a time at which another occurrence of the series was booked.
    for days in (1, -1):
        start = kim.booking(made[2].id).start + timedelta(days=days)
        kim.change_series(made[2].id, start=start, end=start + timedelta(hours=20), title="later")
        assert [kim.booking(one.id).start.day for one in made[2:]] == [
            made[2].start.day + n + (days > 0) for n in range(3)
        ]
        assert {kim.booking(one.id).duration for one in made[2:]} == {timedelta(hours=20)}
        assert kim.booking(made[1].id) == made[1]
    team.clock.forward(hours=2)  # The first booking has begun, so it does not change.
    changed = kim.change_series(made[4].id, everything=True, gpus=("GPU-b0",))
    assert [one.id for one in changed] == [one.id for one in made[1:]]
    assert kim.booking(made[0].id) == made[0]

    team.open("lee").book(draft("a1", 24 * 4 + 3, 1, "lee's"))
    before = everything(kim)
    with pytest.raises(Refused, match=r"nothing was changed: the booking of .*gpu-a:1 is booked by lee"):
        kim.change_series(made[1].id, gpus=("GPU-a1",))
    if team.server is not None:  # Every user of a private file is an admin.
        with pytest.raises(Refused, match="only kim or an admin"):
            team.open("lee").change_series(made[1].id, title="mine")
    with pytest.raises(Refused, match="no series"):
        kim.change_series(kim.book(draft("a3", 5, 1)).id, title="x")
    assert tuple(one for one in everything(kim) if one.gpus != ("GPU-a3",)) == before
    gone = kim.cancel_series(str(made[0].series_id), kim.booking(made[3].id).start)
    assert [one.id for one in gone] == [one.id for one in made[3:]]


def test_a_series_counts_its_own_bookings_towards_the_quota(team):
    admin_of(team).set_rules(Rules(quota_gpu_hours=5, same_day_is_free=False))
    found = team.open("kim").book_series(draft("a0", 1, 2), "FREQ=DAILY;COUNT=3", free_ones=True)
    assert len(found.booked) == 2
    assert [one.why.code for one in found.missed] == ["quota"]


def test_the_database_finds_the_gaps_that_all_bookings_leave(team):
    store = team.open("kim")
    chance = random.Random(4)
    for gpu in ("a0", "a1", "b0"):
        at = chance.randrange(3)
        while at < 200:
            length = chance.randint(1, 5)
            store.book(draft(gpu, at, length))
            at += length + chance.choice((0, 0, 1, 2, 6))
    for count, hours, days in ((1, 2, 8), (2, 1, 5), (3, 1, 8), (1, 6, 8)):
        wish = Wish(
            count, hours * HOUR, NOW, NOW + timedelta(days=days), one_host=False, gpus=("GPU-a0", "GPU-a1", "GPU-b0")
        )
        assert store.find(wish, 50) == find_slots(wish, SLOTS, store.busy(NOW, wish.latest), 50)


def test_a_booking_that_is_made_while_gaps_are_sought_is_seen_or_not_seen_whole(team):
    """In PostgreSQL, a later statement may see newer commits, so the search must be a single statement."""
    kim, lee = team.open("kim"), team.open("lee")
    made = []

    def after_the_first(connection, cursor, statement, parameters, context, many):
        if "booking_gpus" in statement and not made:
            made.append(lee.book(draft("a0", 2, 1)))

    event.listen(kim.session.engine, "after_cursor_execute", after_the_first)
    fits = kim.find(Wish(1, 4 * HOUR, NOW, gpus=("GPU-a0",)))
    assert made
    assert fits[0].start == NOW
    assert kim.find(Wish(1, 4 * HOUR, NOW, gpus=("GPU-a0",)))[0].start == made[0].end


def test_the_day_that_needs_no_quota_is_that_of_the_teams_zone(team):
    """The booking begins tomorrow in the team's zone, UTC, but still today in Honolulu. Only UTC may count."""
    admin_of(team).set_rules(Rules(quota_gpu_hours=4))
    kim = team.open("kim")
    team.clock.now = NOW + timedelta(hours=15)  # 23:00 in UTC, and 13:00 in Honolulu
    tonight = draft("a0 a1 a2 a3 b0 b1 b2", 16, 10, zone="Pacific/Honolulu")
    for wanted in (tonight, replace(tonight, zone="UTC")):
        with pytest.raises(Refused, match="GPU-hours in the week"):
            kim.book(wanted)


def test_a_slot_is_found_where_it_is_free_first(team):
    store = team.open("kim")
    store.book(draft("b0 b1", 1, 5))
    wish = Wish(4, 6 * HOUR, NOW, min_memory_gb=40)
    fits = store.find(wish)
    assert [(fit.host, fit.start) for fit in fits[:3]] == [
        ("gpu-a", NOW),
        ("gpu-a", NOW + 6 * HOUR),
        ("gpu-b", NOW + 6 * HOUR),
    ]
    assert len(fits) == 5
    assert store.find(replace(wish, min_memory_gb=80))[0].start == NOW + 6 * HOUR
    for few, reason in (({"model": "V100"}, "fleet has 0 of that kind"), ({"count": 8}, "the most, 4, are on gpu-a")):
        with pytest.raises(Refused, match=reason):
            store.find(replace(wish, **few))
    assert len(store.find(replace(wish, count=8, one_host=False))) == 5
    booked = store.book(replace(draft("", 0, 0), gpus=fits[0].gpus, start=fits[0].start, end=fits[0].end))
    assert booked.gpus == ("GPU-a0", "GPU-a1", "GPU-a2", "GPU-a3")


def test_nodes_of_a_cluster_are_found_by_its_name_and_named_in_a_clash_but_have_no_waitlist(team):
    kim, lee = team.open("kim"), team.open("lee")
    kim.remember_slots([Slot(f"slurm:hpc/n{number}", "hpc", number, "4 × a100") for number in range(3)])
    end = NOW + timedelta(hours=8)
    kim.book(Draft("night", ("slurm:hpc/n0",), NOW, end, "UTC"))
    with pytest.raises(Clash) as refused:
        lee.book(Draft("day", ("slurm:hpc/n0",), NOW, end, "UTC"))
    nearest = [(fit.gpus, fit.start) for fit in refused.value.conflict.nearest]
    assert nearest[:2] == [(("slurm:hpc/n1",), NOW), (("slurm:hpc/n0",), end)]
    assert "Free nearby: hpc:n1 " in refused.value.sentence()
    two = Wish(2, timedelta(hours=4), NOW, hosts=("hpc",))
    assert [(fit.gpus, fit.start) for fit in lee.find(two, 1)] == [(("slurm:hpc/n1", "slurm:hpc/n2"), NOW)]
    assert not any(
        gpu.startswith("slurm:") for fit in lee.find(Wish(4, timedelta(hours=4), NOW), 9) for gpu in fit.gpus
    )
    with pytest.raises(Refused, match="4 nodes requested, but hpc has 3 of that kind"):
        lee.find(replace(two, count=4))
    with pytest.raises(Refused, match="nodes of a cluster have no waitlist"):
        lee.wait(two, "waits")


def test_the_waitlist_takes_what_is_freed_in_order(team):
    kim, lee, ada = team.open("kim"), team.open("lee"), admin_of(team)
    taken = kim.book(draft("a0 a1 a2 a3 b0 b1 b2 b3", 0, 10))
    wish = Wish(2, 2 * HOUR, NOW, latest=NOW + 9 * HOUR)
    first = lee.wait(wish, "lee waits")
    team.clock.forward(minutes=1)
    kim.wait(replace(wish, count=8, one_host=False), "kim waits")
    assert ada.serve_waiting() == ()
    team.clock.forward(minutes=30)
    kim.release(taken.id)
    (booked, *others) = kim.serve_waiting()
    assert ada.serve_waiting() == ()
    assert (booked.owner, booked.title, len(booked.gpus)) == ("lee", "lee waits", 2)
    assert [(one.owner, one.start) for one in others] == [("kim", booked.end)]
    assert kim.waiting() == ()
    assert {one.id: one.state for one in kim.waiting(everything=True)}[first.id] == "booked"
    leaving = lee.wait(wish, "again")
    lee.stop_waiting(leaving.id)
    with pytest.raises(Refused, match="not waiting"):
        lee.stop_waiting(leaving.id)


def test_an_unused_booking_frees_itself_and_one_that_was_used_is_released(team):
    kim = team.open("kim")
    unused, used = kim.book(draft("a0", 0, 4)), kim.book(draft("a1", 0, 4))
    team.clock.forward(minutes=10)
    kim.mark_active(used.id)
    team.clock.forward(minutes=30)
    reporter = team.open("ada")
    reporter.record_idle([IdleEvidence(unused.id, NOW, NOW + timedelta(minutes=20))])
    assert kim.apply_idle() == ()
    reporter.record_idle([IdleEvidence(unused.id, NOW, team.clock.now)])
    reporter.record_idle([IdleEvidence(used.id, NOW + timedelta(minutes=10), team.clock.now)])
    assert {one.id: one.state for one in kim.apply_idle()} == {unused.id: State.NO_SHOW, used.id: State.RELEASED}
    reporter.book(draft("a0 a1", 1, 1))


def test_a_booking_that_stood_idle_is_not_freed_in_the_moment_in_which_its_owner_begins(team):
    kim = team.open("kim")
    booking = kim.book(draft("a0", 0, 4))
    team.clock.forward(minutes=39)
    kim.record_idle([IdleEvidence(booking.id, NOW, team.clock.now)])
    team.clock.forward(minutes=1)
    kim.mark_active(booking.id)  # The run has begun, but no agent has observed it yet.
    assert kim.apply_idle() == ()
    began = team.clock.now
    team.clock.forward(minutes=31)
    kim.record_idle([IdleEvidence(booking.id, began, team.clock.now)])
    assert [one.state for one in kim.apply_idle()] == [State.RELEASED]


def test_usage_counts_booked_used_idle_and_unbooked_hours(team):
    kim = team.open("kim")
    kim.book(draft("a0 a1", 0, 4))
    team.open("lee").book(draft("b0", 0, 2))
    kim.record_use([Use("GPU-a0", "gpu-a", "kim", NOW, NOW + HOUR)])
    kim.record_use([Use("GPU-a0", "gpu-a", "kim", NOW, NOW + 3 * HOUR), Use("GPU-b1", "gpu-b", "lee", NOW, NOW + HOUR)])
    rows = {row.key: row for row in kim.usage(NOW - HOUR, NOW + timedelta(days=1))}
    assert (rows["kim"].booked_h, rows["kim"].idle_h) == (8, 0)  # Hours in the future do not count.
    team.clock.forward(hours=4)
    rows = {row.key: row for row in kim.usage(NOW - HOUR, NOW + timedelta(days=1))}
    assert (rows["kim"].booked_h, rows["kim"].used_h, rows["kim"].idle_h, rows["kim"].unbooked_h) == (8, 3, 5, 0)
    assert (rows["lee"].booked_h, rows["lee"].used_h, rows["lee"].idle_h, rows["lee"].unbooked_h) == (2, 1, 2, 1)
    hosts = {row.key: row.booked_h for row in kim.usage(NOW, NOW + timedelta(days=1), "host")}
    assert hosts == {"gpu-a": 8, "gpu-b": 2}
    assert [row.key for row in kim.usage(NOW, NOW + timedelta(days=1), "week")] == ["2031-01-06"]


def test_agents_get_a_dated_copy_of_the_coming_days(team):
    store = team.open("kim")
    admin_of(team).set_logins([Login("gpu-*", "ubuntu", "lee"), Login("gpu-*", "ubuntu", "kim")])
    made = store.book(draft("a0", 1, 2))
    store.book(draft("a0", 24 * 5, 2))
    store.cancel(store.book(draft("a1", 1, 2)).id)
    copy = store.snapshot(days=3)
    assert (copy["version"], copy["taken"], copy["fresh_s"]) == (1, "2031-01-06T08:00:00Z", 3600)
    assert [(one["id"], one["gpus"], one["start"]) for one in copy["bookings"]] == [
        (made.id, ["GPU-a0"], "2031-01-06T09:00:00Z")
    ]
    assert copy["logins"] == [{"host": "gpu-*", "user": "ubuntu", "persons": ["kim", "lee"]}]


def test_rules_and_logins_are_kept_and_nonsense_is_refused(team):
    admin = admin_of(team)
    rules = Rules(longest_h=12, groups={"students": ("kim",)}, idle_release_min=None)
    admin.set_rules(rules)
    assert team.open("kim").rules() == rules
    with pytest.raises(UsageError, match="must be a number of 0 or more"):
        admin.set_rules(replace(rules, longest_h=-1))
    with pytest.raises(UsageError, match="the rule furthest_days must be less than 1000000, not 1e\\+20"):
        admin.set_rules(replace(rules, furthest_days=1e20))
    assert team.open("kim").rules() == rules


def test_the_catalogue_keeps_what_was_seen(team):
    store = team.open("ada")
    store.remember_slots([Slot("GPU-new", "gpu-c", 0, "L40S", 46068), replace(SLOTS[0], memory_mb=41000)])
    found = {slot.id: slot for slot in store.slots()}
    assert len(found) == len(SLOTS) + 1
    assert found["GPU-a0"].memory_mb == 41000
    assert found["big-cpu:cpu"].name == "big-cpu:cpu"


def test_another_persons_booking_is_not_ours_to_change(database_team):
    team = database_team
    made = team.open("kim").book(draft("a0", 1, 2))
    lee = team.open("lee")
    for change in (
        lambda: lee.cancel(made.id),
        lambda: lee.change(made.id, title="mine"),
        lambda: lee.release(made.id),
    ):
        with pytest.raises(Refused, match="only kim or an admin can change it"):
            change()
    with pytest.raises(PermissionDenied, match="only an admin can book for kim"):
        lee.book(draft("a1", 1, 2, owner="kim"))
    with pytest.raises(PermissionDenied, match="only an admin can change the rules"):
        lee.set_rules(Rules())
    assert team.open("ada").cancel(made.id).state is State.CANCELLED


def test_a_members_desktop_serves_all_who_wait_in_order(database_team):
    team = database_team
    kim, lee = team.open("kim"), team.open("lee")
    kim.wait(Wish(8, 2 * HOUR, NOW, one_host=False), "kim waits")
    team.clock.forward(minutes=1)
    lee.wait(Wish(2, 2 * HOUR, NOW), "lee waits")
    first, second = lee.serve_waiting()
    assert (first.owner, second.owner) == ("kim", "lee")
    assert (first.start, second.start) == (NOW + timedelta(minutes=1), NOW + 2 * HOUR + timedelta(minutes=1))


def test_all_bookings_move_to_the_team_and_back_without_loss(database_team, tmp_path):
    team, clock = database_team, Clock()
    private = open_store(f"sqlite:///{tmp_path / 'mine.sqlite3'}", "me", clock=clock)
    again = open_store(f"sqlite:///{tmp_path / 'again.sqlite3'}", "kim", clock=clock)
    try:
        private.remember_slots(SLOTS)
        private.set_rules(Rules(longest_h=48))
        private.book_series(draft("a0 a1", 1, 2, "일요일 학습"), "FREQ=WEEKLY;COUNT=3")
        private.release(private.book(draft("b0", 0, 4, purpose="x\ny")).id)
        private.record_use([Use("GPU-a0", "gpu-a", "me", NOW, NOW + HOUR)])
        private.wait(Wish(2, HOUR, NOW, hosts=("gpu-a",)), "waiting")
        clock.forward(days=8)
        moved = transfer_all(private, team.open("ada"), {"me": "kim"})
        assert moved["bookings"] == 4
        assert set(transfer_all(private, team.open("ada"), {"me": "kim"}).values()) == {0}
        transfer_all(team.open("kim"), again)
        mine = [replace(one, owner="kim") for one in everything(private)]
        assert list(everything(team.open("lee"))) == mine == list(everything(again))
        assert again.rules() == private.rules()
        assert [one.wish for one in again.waiting()] == [one.wish for one in private.waiting()]
        assert again.slots() == private.slots()
        assert len(again.uses(NOW, NOW + HOUR)) == 1
        with pytest.raises(PermissionDenied):
            transfer_all(private, team.open("kim"))
        other = open_store(f"sqlite:///{tmp_path / 'other.sqlite3'}", "lee", clock=Clock())
        try:
            other.remember_slots(SLOTS)
            other.book(draft("a3", 5, 1))
            other.book(draft("a0", 1, 1))
            with pytest.raises(Refused, match="overlap; nothing was moved"):
                transfer_all(other, team.open("ada"))
        finally:
            other.close()
        assert len(everything(team.open("lee"))) == 4
    finally:
        private.close()
        again.close()

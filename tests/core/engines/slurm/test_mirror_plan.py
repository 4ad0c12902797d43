"""Tests of the decisions that bring bookings of nodes and reservations in Slurm into agreement."""

from __future__ import annotations

import random

from torchyard_core.engines.slurm.mirror_plan import Hold, LetGo, Rebook, Reserve, Step, Unreserve, steps_between

NOW = 1_000_000
HOLD = Hold(("n1", "n2"), NOW + 600, NOW + 4200)
LONGER = Hold(("n1", "n2"), NOW + 600, NOW + 7800)


def test_a_new_booking_is_reserved() -> None:
    assert steps_between({"a": HOLD}, (), {}, {}, NOW) == [Reserve("a", HOLD, is_new=True)]


def test_a_booking_that_has_ended_early_ends_its_reservation() -> None:
    assert steps_between({}, {"a"}, {"a": HOLD}, {"a": HOLD}, NOW) == [Unreserve("a")]


def test_reservations_of_other_bookings_are_left_alone() -> None:
    assert steps_between({}, (), {"other": HOLD}, {}, NOW) == []


def test_a_change_is_mirrored_to_the_side_that_has_not_changed() -> None:
    assert steps_between({"a": LONGER}, (), {"a": HOLD}, {"a": HOLD}, NOW) == [Reserve("a", LONGER, is_new=False)]
    assert steps_between({"a": HOLD}, (), {"a": LONGER}, {"a": HOLD}, NOW) == [Rebook("a", LONGER)]
    other = Hold(("n3",), HOLD.start, HOLD.end)  # If both have changed, the calendar decides.
    assert steps_between({"a": LONGER}, (), {"a": other}, {"a": HOLD}, NOW) == [Reserve("a", LONGER, is_new=False)]


def test_a_reservation_that_was_deleted_in_slurm_lets_the_booking_go() -> None:
    assert steps_between({"a": HOLD}, (), {}, {"a": HOLD}, NOW) == [LetGo("a")]


def test_a_reservation_that_slurm_removed_at_its_end_is_finished_and_not_deleted() -> None:
    later = HOLD.end + 60
    assert steps_between({"a": HOLD}, (), {}, {"a": HOLD}, later) == []
    assert steps_between({"a": LONGER}, (), {}, {"a": HOLD}, later) == [Reserve("a", LONGER, is_new=True)]


def test_the_start_of_what_has_begun_does_not_differ() -> None:
    begun = Hold(HOLD.nodes, NOW - 30, HOLD.end)
    rounded = Hold(HOLD.nodes, NOW - 1, HOLD.end)
    assert steps_between({"a": begun}, (), {"a": rounded}, {}, NOW) == []


def test_both_sides_agree_after_any_changes() -> None:
    chance = random.Random(7)
    bookings: dict[str, Hold] = {}
    reservations: dict[str, Hold] = {}
    base: dict[str, Hold] = {}
    ended: set[str] = set()

    def anything() -> Hold:
        start = NOW + chance.randrange(100, 1000)
        return Hold((f"n{chance.randrange(9)}",), start, start + chance.randrange(100, 1000))

    def take(step: Step) -> None:
        if isinstance(step, Reserve):
            reservations[step.booking_id] = step.hold
        elif isinstance(step, Rebook):
            bookings[step.booking_id] = step.hold
        elif isinstance(step, Unreserve):
            del reservations[step.booking_id]
        else:
            del bookings[step.booking_id]
            ended.add(step.booking_id)

    for number in range(2000):
        change = chance.randrange(5)
        one = chance.choice([*bookings, ""])
        if change == 0 or not one:
            bookings[f"b{number}"] = anything()
        elif change == 1:
            bookings[one] = anything()
        elif change == 2 and one in reservations:
            reservations[one] = anything()
        elif change == 3:
            reservations.pop(one, None)
        else:
            del bookings[one]
            ended.add(one)
        if chance.random() < 0.3:
            for step in steps_between(bookings, ended, reservations, base, NOW):
                take(step)
            assert steps_between(bookings, ended, reservations, dict(bookings), NOW) == []
            assert reservations == bookings
            base = dict(bookings)

"""Tests of the current state of slots: booked, in use or free."""

from __future__ import annotations

from datetime import timedelta

from tests.core.booking.teams import NOW, SLOTS
from torchyard_core.booking.model import Booking, State
from torchyard_core.booking.search.current_availability import slots_now
from torchyard_core.cli.commands.status import booked_by

HOUR = timedelta(hours=1)


def test_a_slot_is_free_where_it_is_neither_booked_nor_used_and_of_unknown_use_without_a_sample() -> None:
    running = Booking("b1", "kim", "digits", "", ("GPU-a0",), NOW - HOUR, NOW + HOUR, "UTC", State.ACTIVE, NOW, NOW)
    later = Booking("b2", "lee", "eval", "", ("GPU-a1",), NOW + HOUR, NOW + 2 * HOUR, "UTC", State.BOOKED, NOW, NOW)
    users = {"GPU-a0": ["kim: python (7)"], "GPU-a1": [], "GPU-a2": ["ann: python (8)"]}
    found = slots_now(SLOTS[:4], [later, running], users, NOW)
    assert [one.is_free for one in found] == [False, True, False, None]
    assert [booked_by(one, NOW, "UTC") for one in found] == [
        "kim until 09:00 (digits)",
        "free until 09:00 (lee)",
        "used without a booking",
        "not booked",
    ]
    assert found[0].to_json()["booked"]["end"] == "2031-01-06T09:00:00Z"
    assert found[1].to_json()["next"]["owner"] == "lee"

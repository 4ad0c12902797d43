"""Tests that an idle release is decided and made in one transaction, so it never affects a booking that is in use."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta

import pytest

from tests.core.booking.teams import NOW, Team, draft
from torchyard_core.booking.errors import Refused
from torchyard_core.booking.model import Booking, IdleEvidence, State
from torchyard_core.booking.store import BookingStore

ROUNDS = 15
MINUTE = timedelta(minutes=1)


def idle_booking(team: Team, store: BookingStore) -> Booking:
    """Creates a booking, and evidence that it has been idle for 40 min."""
    booking = store.book(draft("a0", 0, 4, start=team.clock.now))
    began = team.clock.now
    team.clock.forward(minutes=40)
    store.record_idle([IdleEvidence(booking.id, began, team.clock.now)])
    return booking


def run_begins(store: BookingStore, booking: Booking, now: object) -> None:
    store.mark_active(booking.id)


def agent_sees_use(store: BookingStore, booking: Booking, now: object) -> None:
    moment = store.now()
    store.record_idle([IdleEvidence(booking.id, moment, moment)])


@pytest.mark.parametrize("news", [run_begins, agent_sees_use])
def test_what_comes_between_the_look_and_the_release_wins(
    team: Team, monkeypatch: pytest.MonkeyPatch, news: Callable[..., None]
) -> None:
    kim, on_another_desktop = team.open("kim"), team.open("kim")
    booking = idle_booking(team, kim)
    look = kim.bookings

    def looked(*args: object, **more: object) -> tuple[Booking, ...]:
        found = look(*args, **more)  # type: ignore[arg-type]  # The arguments have different types.
        news(on_another_desktop, booking, team.clock.now)
        return found

    monkeypatch.setattr(kim.queries, "bookings", looked)
    assert kim.apply_idle() == ()
    assert kim.booking(booking.id).is_live


def test_a_run_that_begins_while_idle_bookings_are_freed_has_a_live_booking_or_is_refused(team: Team) -> None:
    owner, admin = team.open("kim"), team.open("ada")
    begun = freed = 0
    for _ in range(ROUNDS):
        booking = idle_booking(team, owner)
        ready = threading.Barrier(2)
        results: list[Refused | None] = []

        def begin(one: Booking = booking, ready: threading.Barrier = ready, to: list[Refused | None] = results) -> None:
            ready.wait(30)
            try:
                owner.mark_active(one.id)
            except Refused as why:
                to.append(why)
            else:
                to.append(None)

        thread = threading.Thread(target=begin)
        thread.start()
        ready.wait(30)
        admin.apply_idle()
        thread.join(30)
        found = owner.booking(booking.id)
        (refused,) = results
        if refused is None:
            begun += 1
            assert found.state is State.ACTIVE
            owner.release(booking.id)
        else:
            freed += 1
            assert (refused.code, found.state) == ("ended", State.NO_SHOW)
        team.clock.forward(minutes=1)
    assert begun + freed == ROUNDS


def test_older_evidence_does_not_replace_newer(team: Team) -> None:
    kim = team.open("kim")
    booking = kim.book(draft("a0", 0, 4))
    newer = IdleEvidence(booking.id, NOW + 50 * MINUTE, NOW + 50 * MINUTE, "kim")
    kim.record_idle([newer])
    kim.record_idle([IdleEvidence(booking.id, NOW, NOW + 40 * MINUTE)])
    team.clock.forward(minutes=55)
    assert kim.idle_evidence() == (newer,)
    assert kim.apply_idle() == ()

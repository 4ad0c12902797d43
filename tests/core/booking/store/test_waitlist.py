"""Tests that the transaction that frees a slot also books it for the first matching request of the waitlist."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import datetime, timedelta

import pytest

from tests.core.booking.store.test_member_sql import psql
from tests.core.booking.teams import NOW, Team, draft
from torchyard_core.booking.model import Booking, IdleEvidence
from torchyard_core.booking.rules.open_times import Window
from torchyard_core.booking.rules.team_rules import Rules
from torchyard_core.booking.search.conflict import Clash
from torchyard_core.booking.search.slot_search import Wish
from torchyard_core.booking.store import BookingStore

HOUR = timedelta(hours=1)
ROUNDS = 8


def admin_of(team: Team) -> BookingStore:
    return team.open("ada")


def release(store: BookingStore, booking: Booking) -> None:
    store.release(booking.id)


def shorten(store: BookingStore, booking: Booking) -> None:
    store.change(booking.id, end=store.now() + timedelta(minutes=1))


def stay_idle(store: BookingStore, booking: Booking) -> None:
    store.record_idle([IdleEvidence(booking.id, booking.start, store.now())])
    assert [one.id for one in store.apply_idle()] == [booking.id]


@pytest.mark.parametrize("free", [release, shorten, stay_idle])
def test_a_freed_place_is_booked_for_who_waits_before_another_can_take_it(
    team: Team, free: Callable[[BookingStore, Booking], None]
) -> None:
    kim, lee = team.open("kim"), team.open("lee")
    booking = kim.book(draft("a0", 0, 8))
    entry = lee.wait(Wish(1, 2 * HOUR, NOW, gpus=("GPU-a0",), latest=NOW + 8 * HOUR), "lee waits")
    team.clock.forward(minutes=40)
    free(kim, booking)
    (entered,) = [one for one in lee.waiting(everything=True) if one.id == entry.id]
    assert entered.state == "booked"
    served = lee.booking(str(entered.booking_id))
    assert (served.owner, served.title, served.gpus, served.duration) == ("lee", "lee waits", ("GPU-a0",), 2 * HOUR)
    with pytest.raises(Clash) as refused:
        kim.book(draft("a0", 1, 1))
    assert [one.booking.id for one in refused.value.conflict.clashing] == [served.id]
    # The client that freed the slot learns about the new booking exactly once.
    assert kim.serve_waiting() == (served,)
    assert kim.serve_waiting() == ()


def test_who_waits_wins_against_a_client_that_tries_to_book_all_the_time(team: Team) -> None:
    kim, lee, other = team.open("kim"), team.open("lee"), team.open("ada")
    for turn in range(ROUNDS):
        start = team.clock.now
        booking = kim.book(draft("a0", 0, 2, start=start))
        wish = Wish(1, HOUR, start, gpus=("GPU-a0",), latest=start + 2 * HOUR)
        lee.wait(wish, f"lee waits {turn}")
        taken: list[Booking] = []
        ended, tries = threading.Event(), threading.Event()

        def snatch(start: datetime = start, taken: list[Booking] = taken) -> None:
            while not ended.is_set():  # noqa: B023  # The threads are joined below.
                try:
                    taken.append(other.book(draft("a0", 0, 1, start=start)))
                except Clash:
                    tries.set()  # noqa: B023  # The threads are joined below.

        racer = threading.Thread(target=snatch)
        racer.start()
        assert tries.wait(60)
        kim.release(booking.id)
        ended.set()
        racer.join(60)
        assert taken == []
        (served,) = kim.serve_waiting()
        assert (served.owner, served.start) == ("lee", start)
        team.clock.forward(hours=3)


def test_one_whom_the_rules_refuse_keeps_the_place_from_none(team: Team) -> None:
    kim, lee = team.open("kim"), team.open("lee")
    booking = kim.book(draft("a0", 0, 8))
    wish = Wish(1, 2 * HOUR, NOW, gpus=("GPU-a0",), latest=NOW + 8 * HOUR)
    first = lee.wait(wish, "lee waits")
    team.clock.forward(minutes=1)
    second = kim.wait(wish, "kim waits")
    admin_of(team).set_rules(Rules(quotas={"lee": 1}, same_day_is_free=False))
    kim.release(booking.id)
    assert {one.id: one.state for one in kim.waiting(everything=True)} == {first.id: "waiting", second.id: "booked"}


def test_rules_that_cannot_be_read_keep_no_booking_from_being_let_go(team: Team) -> None:
    from sqlalchemy import text

    from torchyard_core.booking.store.database_engine import transaction

    kim = team.open("kim")
    booking = kim.book(draft("a0", 0, 8))
    kim.wait(Wish(1, 2 * HOUR, NOW, gpus=("GPU-a0",), latest=NOW + 8 * HOUR), "waits")
    with transaction(admin_of(team).session.engine, writes=True) as connection:
        connection.execute(text("INSERT INTO rules VALUES (1, :body)"), {"body": '{"windows": 5}'})
    assert not kim.release(booking.id).is_live
    assert [one.state for one in kim.waiting(everything=True)] == ["waiting"]


def test_a_member_serves_by_sql_what_the_entry_asks_for_and_nothing_else(database_team: Team) -> None:
    server, place = database_team.server, database_team.place
    assert server is not None
    kim = database_team.open("kim")
    wish = Wish(2, 2 * HOUR, NOW + HOUR, latest=NOW + 9 * HOUR, hosts=("gpu-a",))
    entry = kim.wait(wish, "kim waits")
    database_team.open("ada").set_rules(Rules(windows=(Window(("gpu-a:3",), days=()),)))

    def serve(gpus: str, starts: float, ends: float, key: str = entry.id) -> str:
        begin, end = (f"'{(NOW + timedelta(hours=one)).isoformat()}'" for one in (starts, ends))
        return f"SELECT torchyard.serve('{key}', 'served', '{{{gpus}}}', {begin}, {end});"

    refused = [
        serve("GPU-a0", 1, 3),  # The request needs two GPUs, but the booking has one.
        serve("GPU-a0,GPU-a0", 1, 3),
        serve("GPU-a0,GPU-b0", 1, 3),  # The GPUs are on two hosts.
        serve("GPU-a0,GPU-a1", 1, 4),  # The booking is longer than requested.
        serve("GPU-a0,GPU-a1", 0, 2),  # The start is earlier than requested.
        serve("GPU-a0,GPU-a1", 8, 10),  # The end is later than requested.
        serve("GPU-a0,GPU-a3", 1, 3),  # The rules do not allow one of the GPUs to be booked.
        serve("GPU-a0,GPU-none", 1, 3),
    ]
    failed, output = psql(server, "lee", place, "\n".join(refused))
    assert failed == len(refused), output
    assert psql(server, "lee", place, serve("GPU-a0,GPU-a1", 1, 3, "none"))[0] == 0  # There is no request with this ID.
    assert kim.count() == 0
    with server.connect("owner", "postgres") as owner:
        owner.execute("CREATE ROLE stranger LOGIN IN ROLE torchyard_member")
    try:
        assert "only members serve" in psql(server, "stranger", place, serve("GPU-a0,GPU-a1", 1, 3))[1]
    finally:
        with server.connect("owner", "postgres") as owner:
            owner.execute("DROP ROLE stranger")
    assert psql(server, "lee", place, serve("GPU-a0,GPU-a1", 1, 3))[0] == 0
    assert [(one.owner, one.gpus) for one in kim.bookings(NOW, NOW + 9 * HOUR)] == [("kim", ("GPU-a0", "GPU-a1"))]

"""Tests that exactly one of fifty processes that compete for the same GPUs books them, that it books all of them, and
that no deadlock occurs.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import insert

from tests.core.booking.teams import NOW, SLOTS, Clock, Team, draft, open_at
from torchyard_core.booking.errors import StoreUnavailable
from torchyard_core.booking.model import Booking, Draft
from torchyard_core.booking.search.conflict import Clash
from torchyard_core.booking.store import BookingStore, tables
from torchyard_core.booking.store.booking_writer import insert_rows, row_of
from torchyard_core.booking.store.database_engine import Overlap, transaction

RACERS = 50
LONG_S = 150  # The limit is generous, because the machine may be busy.
_FORK = multiprocessing.get_context("fork")


def race(url: str, number: int, rounds: int, start: Any, results: Any) -> None:
    """Runs one of the competing processes.

    In each round, all processes book the same GPU, and then groups of GPUs that have one GPU in common.
    """
    store = open_at(url, "kim", Clock())
    store.conflicts.nearest = lambda *_: ()  # type: ignore[method-assign]  # The suggested alternatives are not part of the race.
    chance = random.Random(number)
    outcomes = []
    for turn in range(rounds):
        group = ["a1", *chance.sample(["a2", "a3", "b0", "b1", "b2", "b3"], 3)]
        chance.shuffle(group)
        start.wait(LONG_S)
        for kind, gpus in (("one", "a0"), ("group", " ".join(group))):
            outcomes.append((turn, kind, *attempt(store, draft(gpus, 1 + turn, 1, str(number)))))
    store.close()
    results.put((number, outcomes))


def attempt(store: BookingStore, wanted: Draft) -> tuple[str, Any]:
    try:
        return "won", store.book(wanted).gpus
    except Clash as clash:
        return "lost", clash.conflict.clashing[0].booking.title
    except Exception as error:  # The test reports this exception.
        return "failed", repr(error)


@pytest.mark.parametrize("rounds", [3, pytest.param(20, marks=pytest.mark.proof)])
def test_of_fifty_racers_one_wins_each_round_and_the_refusals_of_the_others_name_it(team, rounds):
    """Single GPUs and overlapping groups are booked in random order. No double booking, deadlock or partial group may
    occur.
    """
    start, results = _FORK.Barrier(RACERS), _FORK.Queue()
    url = team.url("kim")
    racers = [_FORK.Process(target=race, args=(url, number, rounds, start, results)) for number in range(RACERS)]
    for racer in racers:
        racer.start()
    outcomes = dict(results.get(timeout=LONG_S) for _ in racers)
    for racer in racers:
        racer.join(LONG_S)
    results.close()
    results.join_thread()
    made = team.open("kim").bookings(NOW, NOW + timedelta(days=3))
    assert len(made) == 2 * rounds
    ends = [(number, *end) for number, racer in outcomes.items() for end in racer]
    assert len(ends) == 2 * rounds * RACERS
    assert [end for end in ends if end[3] == "failed"] == []
    for kind, size in (("one", 1), ("group", 4)):
        for turn in range(rounds):
            of_it = [end for end in ends if end[1:3] == (turn, kind)]
            ((winner, *_, gpus),) = [end for end in of_it if end[3] == "won"]
            (booking,) = [one for one in made if one.gpus == gpus and one.start == NOW + timedelta(hours=1 + turn)]
            assert (booking.title, len(booking.gpus)) == (str(winner), size)
            assert {end[4] for end in of_it if end[3] == "lost"} == {str(winner)}
    busy = team.open("kim").busy(NOW, NOW + timedelta(days=3))
    assert sum(map(len, busy.values())) == rounds * (1 + 4)


def test_rows_alone_cannot_overlap_whatever_writes_them(team):
    """The conflict check and the locks are disabled, so only the trigger or the constraint can prevent the overlap."""
    store = team.open("kim")
    first = store.book(draft("a0 a1", 1, 2))
    same = Booking(**{**first.__dict__, "id": "other", "gpus": ("GPU-a1", "GPU-a2")})
    with pytest.raises(Overlap), transaction(store.session.engine, writes=True) as connection:
        insert_rows(connection, [same])
    apart = Booking(**{**same.__dict__, "start": first.end, "end": first.end + timedelta(hours=1)})
    with transaction(store.session.engine, writes=True) as connection:
        insert_rows(connection, [apart])
    with pytest.raises(Overlap), transaction(store.session.engine, writes=True) as connection:
        connection.execute(tables.bookings.update().where(tables.bookings.c.id == "other").values(starts=first.start))
    assert [one.id for one in store.bookings(NOW, NOW + timedelta(days=1))] == [first.id, "other"]


def begin_and_wait(url: str, half: Booking, reached: Any) -> None:
    """Writes a part of a booking, and waits until this process is killed."""
    store = open_at(url, "kim", Clock())
    with transaction(store.session.engine, writes=True) as connection:
        connection.execute(insert(tables.bookings), [row_of(half)])
        row = {"booking_id": half.id, "gpu": half.gpus[0], "owner": half.owner}
        times = {"starts": half.start, "ends": half.end, "live": True}
        connection.execute(insert(tables.booking_gpus), [row | times])
        reached.set()
        signal.pause()


def test_a_desktop_that_is_killed_within_a_transaction_leaves_nothing_and_blocks_no_other(team):
    store = team.open("kim")
    pattern = store.book(draft("b0", 1, 1))
    half = Booking(**{**pattern.__dict__, "id": "half", "gpus": ("GPU-a0", "GPU-a1")})
    reached = _FORK.Event()
    victim = _FORK.Process(target=begin_and_wait, args=(team.url("kim"), half, reached))
    victim.start()
    assert reached.wait(LONG_S)
    assert victim.pid is not None
    os.kill(victim.pid, signal.SIGKILL)
    victim.join(LONG_S)
    assert [one.id for one in store.bookings(NOW, NOW + timedelta(days=1))] == [pattern.id]
    assert set(store.busy(NOW, NOW + timedelta(days=1))) == {"GPU-b0"}
    assert store.book(draft("a0 a1", 1, 1)).gpus == ("GPU-a0", "GPU-a1")


def test_a_file_that_another_program_holds_is_busy_and_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr("torchyard_core.booking.store.database_engine.BUSY_S", 0.1)
    team = Team(Clock(), None, f"sqlite:///{tmp_path / 'b.sqlite3'}")
    try:
        one, other = team.open("kim"), team.open("lee")
        one.remember_slots(SLOTS)
        with (
            transaction(one.session.engine, writes=True),
            pytest.raises(StoreUnavailable, match="another program writes to it"),
        ):
            other.book(draft("a0", 1, 1))
        assert other.book(draft("a0", 1, 1)).owner == "lee"
    finally:
        team.close()

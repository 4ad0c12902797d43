"""Exchange with agents: evidence of several hosts combined, and the calendar sent to them."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from torchyard_agent.protocol.calendar import parse
from torchyard_core.booking.errors import Refused, StoreAway
from torchyard_core.booking.model import Booking, Draft, IdleEvidence, Login, Slot, State, Use
from torchyard_core.booking.rules.enforcement import Enforcement
from torchyard_core.booking.rules.team_rules import Rules
from torchyard_core.booking.store import BookingStore, open_store
from torchyard_core.booking.sync.agent_exchange import (
    AgentExchange,
    Exchanged,
    combine,
    exchange_with_agents,
    uses_told,
)
from torchyard_core.errors import AgentTooOld, TorchyardError, UsageError

T0 = datetime(2026, 11, 22, 2, tzinfo=UTC)


def at(minutes: float) -> datetime:
    return T0 + timedelta(minutes=minutes)


def told(minutes: float) -> str:
    return at(minutes).isoformat().replace("+00:00", "Z")


def booking(*gpus: str) -> Booking:
    return Booking("b1", "lee", "tune", "", gpus, at(-10), at(300), "UTC", State.BOOKED, T0, T0)


def idle(since: float, seen: float, *gpus: str) -> dict[str, Any]:
    return {"idle": [{"booking": "b1", "gpus": list(gpus), "since": told(since), "seen": told(seen)}], "uses": []}


def test_a_booking_over_two_hosts_is_idle_since_the_last_of_its_gpus_is() -> None:
    hosts = {"gpu-a": idle(0, 60, "A"), "gpu-b": idle(20, 50, "B")}
    assert combine(hosts, [booking("A", "B")], "kim") == (IdleEvidence("b1", at(20), at(50), "kim"),)


def test_use_on_one_host_is_use_of_the_booking() -> None:
    hosts = {"gpu-a": idle(0, 60, "A"), "gpu-b": idle(60, 60, "B")}
    (found,) = combine(hosts, [booking("A", "B")])
    assert (found.idle_since, found.seen_at) == (at(60), at(60))


def test_nothing_is_said_of_a_booking_of_which_a_gpu_was_seen_by_nobody() -> None:
    assert combine({"gpu-a": idle(0, 60, "A")}, [booking("A", "B")]) == ()
    assert combine({"gpu-a": {"idle": [{"booking": "b1"}, {"gpus": 3}]}}, [booking("A")]) == ()
    assert combine({}, [booking("A")]) == ()


@pytest.mark.parametrize(
    ("user", "claimed", "person"),
    [
        ("ann", "", "kim"),
        ("ann", "lee", "kim"),
        ("ubuntu", "lee", "lee"),
        ("ubuntu", "max", "one of: kim, lee"),
        ("ubuntu", "", "one of: kim, lee"),
        ("carl", "", "carl"),
        ("carl", "lee", "lee"),
        ("", "", ""),
    ],
)
def test_use_is_whose_the_record_says_among_those_that_share_the_login(user: str, claimed: str, person: str) -> None:
    logins = [Login("*", "ann", "kim"), Login("*", "ubuntu", "kim"), Login("*", "ubuntu", "lee")]
    use = {"gpu": "A", "user": user, "person": claimed, "run_id": "r1", "start": told(0), "end": told(5)}
    assert uses_told({"gpu-a": {"uses": [use]}}, logins) == (Use("A", "gpu-a", person, at(0), at(5), "r1"),)


def test_use_by_a_login_that_has_a_persons_name_on_another_host_is_not_that_persons() -> None:
    use = {"gpu": "A", "user": "lee", "person": "", "run_id": "", "start": told(0), "end": told(5)}
    seen = {"gpu-a": {"uses": [use]}, "gpu-b": {"uses": [use]}}
    here, there = uses_told(seen, [Login("gpu-a", "lee", "lee")])
    assert (here.person, there.person) == ("lee", "lee on gpu-b")


def test_a_use_of_no_time_or_that_is_not_understood_is_left_out() -> None:
    use = {"gpu": "A", "user": "ann", "person": "", "run_id": "", "start": told(0), "end": told(0)}
    assert uses_told({"gpu-a": {"uses": [use, {"gpu": "A"}, {**use, "start": "yesterday"}]}}, []) == ()


def test_enforcement_is_a_rule_that_agents_understand(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path / 'bookings.sqlite3'}", "kim")
    store.set_rules(Rules(enforcement=(Enforcement("gpu-*", "stop", 600, dry_run=False), Enforcement())))
    assert Rules.from_json(store.rules().to_json()) == store.rules()
    known = parse(store.snapshot())
    assert known.enforcement_on("gpu-a")._asdict() == {"level": "stop", "grace_s": 600.0, "dry_run": False}
    assert known.enforcement_on("big-cpu").level == "observe"
    for wrong in ({"level": "kill"}, {"grace_s": -1}, {"dry_run": "no"}, {"host": ""}, {"grace": 3}):
        with pytest.raises(UsageError):
            Rules.from_json({"enforcement": [wrong]})
    store.close()


class OneHost:
    """A fleet of one host, whose agent responds from a table."""

    def __init__(self, answers: dict[str, Any]):
        self.hosts = {"gpu-a": None}
        self.answers = answers
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.is_open = True

    def open_link(self, name: str) -> Any:
        return self if self.is_open else None

    def submit(self, method: str, params: dict[str, Any]) -> Future[Any]:
        self.asked.append((method, params))
        answer: Future[Any] = Future()
        found = self.answers[method]
        answer.set_exception(found) if isinstance(found, Exception) else answer.set_result(found)
        return answer


@pytest.fixture
def store(tmp_path: Path) -> Any:
    made = open_store(f"sqlite:///{tmp_path / 'bookings.sqlite3'}", "kim")
    made.remember_slots([Slot("A", "gpu-a", 0)])
    made.book(Draft("tune", ("A",), made.now(), made.now() + timedelta(hours=1), "UTC"))
    yield made
    made.close()


def test_an_exchange_takes_in_what_was_seen_and_hands_over_what_is_booked(store: BookingStore) -> None:
    fleet: Any = OneHost({"bookings.evidence": {"idle": [], "uses": []}, "bookings.snapshot": {"kept": True}})
    done = exchange_with_agents(fleet, store)
    assert (done.hosts, done.problems, done.freed) == (("gpu-a",), {}, ())
    method, params = fleet.asked[-1]
    assert (method, params["host"]) == ("bookings.snapshot", "gpu-a")
    assert [one.owner for one in parse(params["snapshot"]).bookings] == ["kim"]
    fleet.is_open = False
    assert exchange_with_agents(fleet, store).hosts == ()


def test_an_older_agent_is_no_problem(store: BookingStore) -> None:
    old = AgentTooOld("gpu-a", "1.0", "bookings.snapshot", is_newer=False)
    fleet: Any = OneHost({"bookings.evidence": old, "bookings.snapshot": old})
    assert exchange_with_agents(fleet, store).problems == {}


def test_hosts_are_told_when_they_connect_when_bookings_change_and_after_trouble(store: BookingStore) -> None:
    fleet: Any = OneHost({"bookings.evidence": {"idle": [], "uses": []}, "bookings.snapshot": {"kept": True}})
    exchanged, troubled = threading.Semaphore(0), threading.Semaphore(0)
    away = [True]

    def opened() -> BookingStore:
        if away[0]:
            raise StoreAway("the database does not answer")
        return store

    def trouble(error: TorchyardError) -> None:
        away[0] = False
        troubled.release()

    refusing = [True]

    def on_exchanged(done: Exchanged) -> None:
        if refusing.pop() if refusing else False:
            raise Refused("the booking does not end after its start", code="empty")
        exchanged.release()

    exchange = AgentExchange(fleet, opened, on_exchanged, trouble)
    try:
        assert troubled.acquire(timeout=60)
        exchange.changed()
        assert troubled.acquire(timeout=60)  # by what was to be done then
        exchange.changed()
        assert exchanged.acquire(timeout=60)
        handed = len(fleet.asked)
        exchange.changed()
        assert exchanged.acquire(timeout=60)
        assert len(fleet.asked) == handed + 2
        assert not exchanged.acquire(timeout=0.2), "nothing has changed since"
    finally:
        exchange.close()

"""Tests of the exchange with agents: evidence of several hosts is combined, and the calendar is sent to the hosts."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from torchyard_agent.protocol.calendar import parse
from torchyard_core.booking.model import Booking, Draft, IdleEvidence, Login, Slot, State
from torchyard_core.booking.rules.enforcement import Enforcement
from torchyard_core.booking.rules.team_rules import Rules
from torchyard_core.booking.store import BookingStore, open_store
from torchyard_core.booking.sync.agent_sync import combine_evidence, sync_agents
from torchyard_core.errors import AgentTooOld, UsageError

T0 = datetime(2026, 11, 22, 2, tzinfo=UTC)


def at(minutes: float) -> datetime:
    return T0 + timedelta(minutes=minutes)


def minutes_later(minutes: float) -> str:
    return at(minutes).isoformat().replace("+00:00", "Z")


def booking(*gpus: str) -> Booking:
    return Booking("b1", "lee", "tune", "", gpus, at(-10), at(300), "UTC", State.BOOKED, T0, T0)


def idle(since: float, seen: float, *gpus: str) -> dict[str, Any]:
    return {
        "idle": [{"booking": "b1", "gpus": list(gpus), "since": minutes_later(since), "seen": minutes_later(seen)}],
        "uses": [],
    }


def test_a_booking_over_two_hosts_is_idle_since_the_last_of_its_gpus_is() -> None:
    hosts = {"gpu-a": idle(0, 60, "A"), "gpu-b": idle(20, 50, "B")}
    assert combine_evidence(hosts, [booking("A", "B")], "kim") == (IdleEvidence("b1", at(20), at(50), "kim"),)


def test_use_on_one_host_is_use_of_the_booking() -> None:
    hosts = {"gpu-a": idle(0, 60, "A"), "gpu-b": idle(60, 60, "B")}
    (found,) = combine_evidence(hosts, [booking("A", "B")])
    assert (found.idle_since, found.seen_at) == (at(60), at(60))


def test_a_booking_with_a_gpu_that_no_host_reported_has_no_evidence() -> None:
    assert combine_evidence({"gpu-a": idle(0, 60, "A")}, [booking("A", "B")]) == ()
    assert combine_evidence({"gpu-a": {"idle": [{"booking": "b1"}, {"gpus": 3}]}}, [booking("A")]) == ()
    assert combine_evidence({}, [booking("A")]) == ()


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


ANSWERS: dict[str, Any] = {
    "bookings.evidence": {"idle": [], "uses": []},
    "bookings.confirm": {"kept": False},
    "bookings.snapshot": {"kept": True},
}


class OneHost:
    """A fleet with one host, whose agent answers from a table."""

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
    fleet: Any = OneHost(ANSWERS)
    done = sync_agents(fleet, store)
    assert (done.hosts, done.problems, done.released) == (("gpu-a",), {}, ())
    method, params = fleet.asked[-1]
    assert (method, params["host"]) == ("bookings.snapshot", "gpu-a")
    assert [one.owner for one in parse(params["snapshot"]).bookings] == ["kim"]
    fleet.is_open = False
    assert sync_agents(fleet, store).hosts == ()


class KeepsRevision(OneHost):
    """A fleet whose agent remembers the revision of the last calendar that it received."""

    def submit(self, method: str, params: dict[str, Any]) -> Future[Any]:
        if method == "bookings.snapshot":
            self.revision = params["revision"]
        self.answers["bookings.confirm"] = {"kept": params.get("revision") == getattr(self, "revision", None)}
        return super().submit(method, params)


def test_a_snapshot_is_handed_over_again_only_where_it_has_changed(
    store: BookingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = store.now().replace(minute=10)
    monkeypatch.setattr(store, "now", lambda: now)
    fleet: Any = KeepsRevision(dict(ANSWERS))

    def is_sent() -> bool:
        fleet.asked.clear()
        assert sync_agents(fleet, store).problems == {}
        methods = [method for method, _ in fleet.asked]
        assert "bookings.confirm" in methods
        return "bookings.snapshot" in methods

    assert is_sent()
    assert not is_sent()
    changes: list[Callable[[], object]] = [
        lambda: store.book(Draft("more", ("A",), now + timedelta(hours=2), now + timedelta(hours=3), "UTC")),
        lambda: store.set_logins([Login("gpu-*", "kim", "kim")]),
        lambda: store.set_rules(Rules.from_json({"enforcement": [{"host": "*", "level": "warn"}]})),
    ]
    for change in changes:
        change()
        assert is_sent()
        assert not is_sent()
    now += timedelta(hours=1)
    assert is_sent()


def test_an_older_agent_is_no_problem(store: BookingStore) -> None:
    old = AgentTooOld("gpu-a", "1.0", "bookings.snapshot", is_newer=False)
    fleet: Any = OneHost({"bookings.evidence": old, "bookings.confirm": old, "bookings.snapshot": old})
    assert sync_agents(fleet, store).problems == {}

"""Tests of synchronizing the calendar: the order of the steps, and the conditions under which a step is repeated."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.core.booking.sync.test_agent_sync import OneHost
from torchyard_agent.protocol.calendar import parse
from torchyard_core.app.sync_calendar import CalendarSync, PeriodicSync, SyncCalendar
from torchyard_core.booking.errors import Refused, StoreUnavailable
from torchyard_core.booking.model import Draft, Slot, State
from torchyard_core.booking.store import BookingStore, open_store
from torchyard_core.errors import TorchyardError
from torchyard_core.home import Home
from torchyard_core.launch.runs.history import History, RunRecord

ANSWERS = {
    "bookings.evidence": {"idle": [], "uses": []},
    "bookings.confirm": {"kept": False},
    "bookings.snapshot": {"kept": True},
    "run.list": [],
}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[BookingStore]:
    opened = open_store(f"sqlite:///{tmp_path / 'bookings.sqlite3'}", "kim")
    opened.remember_slots([Slot("A", "gpu-a", 0)])
    yield opened
    opened.close()


class Fleet(OneHost):
    def known(self) -> tuple[()]:
        return ()

    def call(self, method: str, params: dict[str, Any] | None = None, timeout_s: float = 60.0) -> Any:
        return self.submit(method, params or {}).result()


@pytest.mark.parametrize("is_connected", [True, False])
def test_bookings_of_ended_runs_are_released_before_hosts_get_the_calendar(
    store: BookingStore, tmp_path: Path, is_connected: bool
) -> None:
    now = store.now()
    booking = store.book(Draft("work", ("A",), now, now + timedelta(hours=4), "UTC", run_id="run-a"))
    home = Home(tmp_path)
    ended = now.isoformat()
    History(home.history).save(
        RunRecord("run-a", "work", "", "gpu-a", ("gpu-a",), ended, "succeeded", ended=ended, booking=booking.id)
    )
    fleet: Any = Fleet(ANSWERS)
    fleet.is_open = is_connected

    done = SyncCalendar(home, fleet).run(store)

    assert [(one.id, one.state) for one in done.run_ended] == [(booking.id, State.RELEASED)]
    assert done.hosts == (("gpu-a",) if is_connected else ())
    handed = [params["snapshot"] for method, params in fleet.asked if method == "bookings.snapshot"]
    assert [parse(snapshot).bookings for snapshot in handed] == [()] * is_connected


def test_it_is_repeated_when_hosts_connect_when_bookings_change_and_after_an_error(store: BookingStore) -> None:
    fleet: Any = OneHost(ANSWERS)
    synced, failed = threading.Semaphore(0), threading.Semaphore(0)
    errors: list[TorchyardError] = [
        StoreUnavailable("the database does not answer"),
        Refused("the booking ends at or before its start", code="empty"),
    ]

    def sync() -> CalendarSync:
        if errors:
            raise errors.pop(0)
        synced.release()
        return CalendarSync(("gpu-a",), {}, (), (), (), ())

    periodic = PeriodicSync(fleet, sync, lambda error: failed.release())
    try:
        for _ in range(2):
            assert failed.acquire(timeout=60)
            periodic.changed()
        assert synced.acquire(timeout=60)
        periodic.changed()
        assert synced.acquire(timeout=60)
        assert not synced.acquire(timeout=0.2), "nothing has changed since"
    finally:
        periodic.close()

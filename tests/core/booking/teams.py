"""A team for tests: several users of one calendar, GPUs, and a manual clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import Connection, event

from tests.core.booking.cluster import Cluster
from torchyard_core.booking.model import Draft, Slot, cpu_slot
from torchyard_core.booking.store import BookingStore, open_store

NOW = datetime(2031, 1, 6, 8, 0, tzinfo=UTC)
"""A Monday in the future, because PostgreSQL uses its own clock to protect past bookings. The rules use the test's
clock.
"""
SLOTS = (
    *(Slot(f"GPU-a{number}", "gpu-a", number, "NVIDIA A100-SXM4-40GB", 40960) for number in range(4)),
    *(Slot(f"GPU-b{number}", "gpu-b", number, "NVIDIA H100 80GB HBM3", 81559) for number in range(4)),
    cpu_slot("big-cpu"),
)


class Clock:
    """A clock whose time the test sets."""

    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> datetime:
        return self.now

    def forward(self, **much: float) -> datetime:
        self.now += timedelta(**much)
        return self.now


def open_at(url: str, person: str, clock: Callable[[], datetime]) -> BookingStore:
    """Opens a calendar with `clock`. The database of a test cluster uses this clock for its rules, too."""
    store = open_store(url, person, clock=clock, own_time=True)
    if not store.is_private:

        @event.listens_for(store.session.engine, "begin")
        def begin(connection: Connection) -> None:
            connection.exec_driver_sql(f"SELECT set_config('torchyard_test.now', '{clock().isoformat()}', true)")

    return store


@dataclass
class Team:
    """Opens one calendar as various users. `place` is an SQLite URL, or the name of a database on the server."""

    clock: Clock
    server: Cluster | None
    place: str
    slots: tuple[Slot, ...] = SLOTS
    _open: list[BookingStore] = field(default_factory=list)

    def url(self, person: str) -> str:
        return self.place if self.server is None else self.server.url(person, self.place)

    def open(self, person: str) -> BookingStore:
        store = open_at(self.url(person), person, self.clock)
        self._open.append(store)
        return store

    def close(self) -> None:
        for store in self._open:
            store.close()


def draft(gpus: str, starts_in_h: float, hours: float, title: str = "digits", **more: Any) -> Draft:
    """Returns a draft for GPUs such as `a0 a1 b2`; its times are relative to NOW."""
    ids = tuple("big-cpu:cpu" if word == "cpu" else f"GPU-{word}" for word in gpus.split())
    start = more.pop("start", NOW + timedelta(hours=starts_in_h))
    return Draft(title, ids, start, start + timedelta(hours=hours), more.pop("zone", "Europe/Berlin"), **more)

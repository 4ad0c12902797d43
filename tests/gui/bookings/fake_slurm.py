"""A simulated cluster for the Bookings page: lanes of its nodes, and reservations that follow the bookings."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tests.core.engines.slurm.samples import CLUSTER
from tests.gui.bookings.conftest import NOW, Desk
from torchyard_core.booking.model import Booking, Slot, is_of_cluster
from torchyard_core.booking.store import BookingStore
from torchyard_core.engines import registry
from torchyard_core.engines.slurm.cluster_calendar import ClusterCalendar
from torchyard_core.engines.slurm.reservation_mirror import Mirrored
from torchyard_core.errors import AgentRefused, Unreachable

FLEET = "version: 1\nhosts: []\nclusters:\n  - {name: hpc, kind: slurm, partition: gpu}\n"
Hold = tuple[tuple[str, ...], float, float]


class FakeSlurm:
    """The cluster `hpc` with two nodes, on which no job runs."""

    def __init__(self) -> None:
        self.held: dict[str, Hold] = {}
        """The nodes and times of the reservations, by the booking's ID."""
        self.may_reserve = True
        self.refusal = ""
        """The message with which Slurm refuses new and changed reservations."""
        self.others: list[dict[str, Any]] = []
        """The reservations that mirror no booking: name, start, end and nodes."""
        self.is_silent = False
        self.answers = threading.Event()
        """While this is not set, the cluster does not answer requests for reservations."""
        self.answers.set()
        self.asked = threading.Event()
        """Set by each request for reservations."""

    def calendar(self, *_: object, **options: object) -> ClusterCalendar:
        reservations = [
            {
                "name": f"torchyard_{booking_id}",
                "start": start,
                "end": end,
                "nodes": [node.partition("/")[2] for node in nodes],
                "users": ["kim"],
                "state": "ACTIVE",
            }
            for booking_id, (nodes, start, end) in list(self.held.items())
        ]
        reservations += [{**one, "users": ["root"], "state": "ACTIVE"} for one in self.others]
        names = [{"name": name, "gpus": {"a100": 4}, "cpus": 32} for name in ("n1", "n2")]
        found: dict[str, Any] = {"as_of": NOW.timestamp(), "nodes": names, "reservations": reservations, "jobs": []}
        return ClusterCalendar.from_answer(CLUSTER, found)

    def slots(self, *_: object) -> tuple[Slot, ...]:
        return self.calendar().slots

    def mirror(self, fleet: object, name: str, store: BookingStore, folder: object) -> Mirrored:
        self.asked.set()
        assert self.answers.wait(30)
        if self.is_silent:
            raise Unreachable("hpc", "hpc does not answer on port 22.")
        live = {one.id: hold_of(one) for one in store.bookings(NOW, NOW.replace(year=2032)) if _has_nodes(one)}
        if not self.may_reserve:
            return Mirrored(name, False, frozenset(), {})
        problems = {}
        for booking_id, hold in live.items():
            if self.refusal and self.held.get(booking_id) != hold:
                problems[booking_id] = AgentRefused("hpc", self.refusal, code="slurm_failed")
            else:
                self.held[booking_id] = hold
        for booking_id in self.held.keys() - live.keys():
            del self.held[booking_id]
        return Mirrored(name, True, frozenset(live) - problems.keys(), problems)


def hold_of(booking: Booking) -> Hold:
    return booking.gpus, booking.start.timestamp(), booking.end.timestamp()


def _has_nodes(booking: Booking) -> bool:
    return booking.is_live and any(map(is_of_cluster, booking.gpus))


def use_fake_slurm(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    """Adds a simulated cluster to the fleet file of a page that is not open yet."""
    (desk.folder / "fleet.yaml").write_text(FLEET)
    slurm = FakeSlurm()
    monkeypatch.setattr(registry, "read_cluster_calendar", slurm.calendar)
    monkeypatch.setattr(registry, "read_node_slots", slurm.slots)
    monkeypatch.setattr(registry, "mirror_reservations", slurm.mirror)
    return slurm

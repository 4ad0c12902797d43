"""Tests of changes of the calendar that are mirrored in Slurm: what Slurm refuses is taken back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from torchyard_core.app.cluster_bookings import ClusterBookings
from torchyard_core.app.desktop import Desktop
from torchyard_core.booking.change_history import headline
from torchyard_core.booking.errors import Refused
from torchyard_core.booking.model import Booking, Draft, Slot
from torchyard_core.booking.store import BookingStore, open_store
from torchyard_core.engines import registry
from torchyard_core.engines.slurm.reservation_mirror import Mirrored
from torchyard_core.errors import AgentRefused, RunFailed, Unreachable

NOW = datetime(2031, 1, 8, 8, 0, tzinfo=UTC)
HOUR = timedelta(hours=1)
NODES = tuple(Slot(f"slurm:hpc/n{number}", "hpc", number, "4 × a100") for number in (1, 2))
N1, N2 = (slot.id for slot in NODES)
GPU = Slot("GPU-a0", "gpu-a", 0, "A100", 40960)


class Cluster:
    """Answers requests for reservations: it refuses those of bookings with `refused` in their title."""

    def __init__(self) -> None:
        self.mirrored = 0
        self.is_silent = False

    def mirror(self, fleet: object, name: str, store: BookingStore, folder: object) -> Mirrored:
        self.mirrored += 1
        if self.is_silent:
            raise Unreachable(name, "hpc does not answer on port 22.")
        live = [one for one in store.bookings(NOW - HOUR, NOW.replace(year=2032)) if one.is_live]
        problems = {one.id: AgentRefused("hpc", "nodes busy", code="x") for one in live if "refused" in one.title}
        return Mirrored(name, True, frozenset(one.id for one in live), problems)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    made = Cluster()
    found: Callable[..., Any] = lambda fleet, gpus: ["hpc"] if any("hpc/" in gpu for gpu in gpus) else []  # noqa: E731
    monkeypatch.setattr(registry, "clusters_with_nodes", found)
    monkeypatch.setattr(registry, "read_node_slots", lambda fleet, name: NODES)
    monkeypatch.setattr(registry, "mirror_reservations", made.mirror)
    return made


@pytest.fixture
def store(tmp_path: Path) -> Iterator[BookingStore]:
    made = open_store(f"sqlite:///{tmp_path / 'bookings.sqlite3'}", "kim", clock=lambda: NOW)
    made.remember_slots([GPU])
    yield made
    made.close()


@pytest.fixture
def mirror(cluster: Cluster, store: BookingStore, tmp_path: Path) -> ClusterBookings:
    desktop = SimpleNamespace(fleet=None, home=SimpleNamespace(caches=tmp_path))
    return ClusterBookings(cast("Desktop", desktop), store)


def draft(title: str = "mine", gpus: tuple[str, ...] = (N1,), start_h: int = 2) -> Draft:
    return Draft(title, gpus, NOW + start_h * HOUR, NOW + (start_h + 2) * HOUR, "UTC")


def live(store: BookingStore) -> list[Booking]:
    return [one for one in store.bookings(NOW - HOUR, NOW.replace(year=2032)) if one.is_live]


def test_nodes_that_the_calendar_lacks_are_added_and_a_booking_of_gpus_asks_no_cluster(
    mirror: ClusterBookings, store: BookingStore, cluster: Cluster
) -> None:
    mirror.perform(lambda store: store.book(draft("gpus", (GPU.id,))))
    assert cluster.mirrored == 0
    done = mirror.perform(lambda store: store.book(draft()), [N1])
    assert {slot.id for slot in store.slots()} == {GPU.id, N1, N2}
    assert (cluster.mirrored, [one.cluster for one in done.mirrored]) == (1, ["hpc"])
    assert done.result in live(store)


def test_a_refused_reservation_leaves_no_booking(mirror: ClusterBookings, store: BookingStore) -> None:
    with pytest.raises(RunFailed, match="so nothing was booked: hpc: nodes busy"):
        mirror.perform(lambda store: [store.book(draft()), store.book(draft("refused", (N2,)))], [N1, N2])
    assert live(store) == []


def test_a_refused_change_is_changed_back(mirror: ClusterBookings, store: BookingStore) -> None:
    made = mirror.perform(lambda store: store.book(draft()), [N1]).result
    with pytest.raises(RunFailed, match="so nothing was changed: hpc: nodes busy"):
        mirror.perform(lambda store: store.change(made.id, title="refused", end=made.end + HOUR, gpus=(N2,)))
    (now,) = live(store)
    assert (now.title, now.end, now.gpus) == (made.title, made.end, made.gpus)


def test_a_cancelled_change_is_taken_back(mirror: ClusterBookings, store: BookingStore, cluster: Cluster) -> None:
    calls = iter([None, ValueError("cancelled")])

    def checkpoint() -> None:
        if (error := next(calls)) is not None:
            raise error

    with pytest.raises(ValueError, match="cancelled"):
        mirror.perform(lambda store: store.book(draft()), [N1], checkpoint)
    assert live(store) == []
    assert cluster.mirrored == 2  # The reservation is ended, too.


def test_the_error_of_a_silent_cluster_is_returned_and_the_booking_kept(
    mirror: ClusterBookings, store: BookingStore, cluster: Cluster
) -> None:
    cluster.is_silent = True
    done = mirror.perform(lambda store: store.book(draft()), [N1])
    assert [error.message for error in done.errors] == ["hpc does not answer on port 22."]
    assert live(store) == [done.result]


def test_a_booking_is_of_hosts_or_of_one_cluster_and_stays_there(store: BookingStore) -> None:
    store.remember_slots([*NODES, Slot("slurm:other/n1", "other", 0, "")])
    for gpus in ((GPU.id, N1), (N1, "slurm:other/n1")):
        with pytest.raises(Refused, match="either GPUs of hosts or nodes of one cluster"):
            store.book(draft(gpus=gpus))
    made = store.book(draft())
    for gpus in ((GPU.id,), ("slurm:other/n1",)):
        with pytest.raises(Refused, match="cannot be moved between a cluster and other hosts"):
            store.change(made.id, gpus=gpus)


def test_a_change_that_slurm_refused_is_taken_back_in_its_name(mirror: ClusterBookings, store: BookingStore) -> None:
    made = mirror.perform(lambda store: store.book(draft()), [N1]).result
    with pytest.raises(RunFailed):
        mirror.perform(lambda store: store.change(made.id, title="refused"))
    assert [(one.cluster, one.kind) for one in store.history(made.id)] == [
        ("", "made"),
        ("", "changed"),
        ("hpc", "changed"),
    ]
    assert headline(store.history(made.id)[-1], "UTC").endswith("  Slurm (hpc) changed it")


def test_a_change_of_a_booking_of_a_cluster_that_has_left_the_fleet_says_that_slurm_keeps_its_reservation(
    mirror: ClusterBookings, store: BookingStore, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = mirror.perform(lambda store: store.book(draft()), [N1]).result
    monkeypatch.setattr(registry, "clusters_with_nodes", lambda fleet, gpus: [])
    done = mirror.perform(lambda store: store.cancel(made.id))
    assert [error.code for error in done.errors] == ["cluster_not_in_fleet"]
    assert "the cluster hpc is not in the fleet, so Slurm keeps the reservation" in done.errors[0].message
    assert cluster.mirrored == 1

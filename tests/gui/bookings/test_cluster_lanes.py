"""Tests of the lanes of a cluster's nodes, with its jobs, read once a minute while the calendar is visible."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from PySide6.QtCore import QTimer

from tests.core.engines.slurm.samples import CLUSTER
from tests.gui.bookings.conftest import NOW, Desk
from torchyard_core.booking.model import Draft
from torchyard_core.engines import registry
from torchyard_core.engines.slurm.cluster_calendar import ClusterCalendar
from torchyard_core.errors import Unreachable
from torchyard_gui.bookings.dialogs.booking_dialog import BookingDialog

FLEET = "version: 1\nhosts: []\nclusters:\n  - {name: hpc, kind: slurm, partition: gpu}\n"
HOUR = 3600


def answer(nodes: int = 2, **more: Any) -> ClusterCalendar:
    """Returns a calendar in which job 7 of lee runs on n1 and n2 from one hour ago to one hour ahead."""
    now = NOW.timestamp()
    names = [f"n{number}" for number in range(1, nodes + 1)]
    job = {"id": "7", "name": "train", "user": "lee", "start": now - HOUR, "end": now + HOUR, "nodes": ["n1", "n2"]}
    found = {
        "as_of": now,
        "nodes": [{"name": name, "gpus": {"a100": 4}, "cpus": 32} for name in names],
        "reservations": [],
        "jobs": [job],
        **more,
    }
    return ClusterCalendar.from_answer(CLUSTER, found)


@pytest.fixture
def answers(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], ClusterCalendar]]:
    """The answers of the cluster's login node; the last one is repeated. The calendar is not open yet."""
    (desk.folder / "fleet.yaml").write_text(FLEET)
    coming: list[Callable[[], ClusterCalendar]] = [answer]
    monkeypatch.setattr(
        registry, "read_cluster_calendar", lambda fleet, name: (coming.pop(0) if coming[1:] else coming[0])()
    )
    return coming


def read_clusters(
    desk: Desk, answers: list[Callable[[], ClusterCalendar]], *coming: Callable[[], ClusterCalendar]
) -> None:
    """Reads the clusters again, with other answers."""
    desk.wait_until(lambda: desk.page.clusters._reading["hpc"].is_finished)
    answers[:] = coming
    desk.page.clusters.read()


def nodes(desk: Desk) -> list[str]:
    return [lane.slots[0].node for lane in desk.page.surface.picture.lanes.lanes if lane.slots[0].node]


def test_a_job_is_a_read_only_block_on_the_lanes_of_its_nodes(
    desk: Desk, answers: list[Callable[[], ClusterCalendar]]
) -> None:
    desk.open()
    desk.wait_until(lambda: desk.shown("job 7 (train)"))
    assert nodes(desk) == ["n1", "n2"]
    assert desk.page.bar.free.text() == "Free now: 8 of 8 GPUs"  # Nodes of a cluster are not booked here.
    page = desk.page
    page.surface.select("slurm:hpc/job 7")
    assert page.selected_booking is not None
    assert not page.acts.edit.isEnabled()
    assert not page.acts.release.isEnabled()
    assert not page.acts.copy.isEnabled()
    assert page.details.gpus.text() == "hpc:n1, hpc:n2 · 2 h"
    assert page.details.who.text() == "lee"
    assert (
        page.refuse(["slurm:hpc/n1"], NOW.timestamp(), NOW.timestamp() + HOUR, page.selected_booking)
        == "Only Slurm changes its jobs and reservations."
    )
    assert desk.store.bookings(NOW, NOW.replace(year=2032)) == ()


def test_clusters_are_read_once_a_minute_while_the_calendar_is_visible(
    desk: Desk, answers: list[Callable[[], ClusterCalendar]]
) -> None:
    desk.open()
    clock = desk.page.clusters.findChild(QTimer)
    assert clock is not None
    assert (clock.isActive(), clock.interval()) == (True, 60_000)
    desk.wait_until(lambda: desk.shown("job 7 (train)"))
    desk.wait_until(lambda: desk.page.clusters._reading["hpc"].is_finished)
    answers[:] = [lambda: answer(jobs=[])]
    clock.timeout.emit()
    desk.wait_until(lambda: not desk.shown("job 7 (train)"))
    desk.page.hide()
    assert not clock.isActive()


def test_a_cluster_that_does_not_answer_is_named_and_keeps_its_last_known_lanes(
    desk: Desk, answers: list[Callable[[], ClusterCalendar]]
) -> None:
    def fail() -> ClusterCalendar:
        raise Unreachable("hpc", "hpc does not answer on port 22.")

    desk.open()
    desk.wait_until(lambda: desk.shown("job 7 (train)"))
    read_clusters(desk, answers, fail)
    desk.wait_until(lambda: "of the cluster hpc are unknown: hpc does not answer" in desk.page.notice.text)
    assert desk.shown("job 7 (train)")
    assert desk.page.surface.picture.states["hpc"] == "unknown"
    desk.page.notice.clear()
    desk.page.hide()
    desk.page.show()
    desk.wait_until(lambda: "of the cluster hpc are unknown" in desk.page.notice.text)
    read_clusters(desk, answers, answer)
    desk.wait_until(lambda: desk.page.notice.isHidden())


def test_the_nodes_of_a_large_cluster_are_folded_at_first(
    desk: Desk, answers: list[Callable[[], ClusterCalendar]]
) -> None:
    answers[:] = [lambda: answer(nodes=100)]
    desk.open()
    desk.wait_until(lambda: "hpc" in desk.page.surface.picture.folded)
    assert nodes(desk) == []
    desk.page.fold("hpc")
    assert len(nodes(desk)) == 100


def test_a_cluster_that_leaves_the_fleet_file_has_no_lanes(
    desk: Desk, answers: list[Callable[[], ClusterCalendar]]
) -> None:
    desk.open()
    desk.wait_until(lambda: nodes(desk) == ["n1", "n2"])
    desk.fleet.fleet_file.write_text("version: 1\nhosts: []\n")
    desk.fleet.refresh()
    desk.wait_until(lambda: nodes(desk) == [])


def test_a_booking_of_a_node_is_mirrored_and_marked_until_slurm_has_a_reservation(
    desk: Desk, answers: list[Callable[[], ClusterCalendar]], monkeypatch: pytest.MonkeyPatch
) -> None:
    mirrored: list[str] = []
    monkeypatch.setattr(registry, "mirror_reservations", lambda fleet, name, store, folder: mirrored.append(name))
    desk.store.remember_slots(answer().slots[:1])
    start = NOW + timedelta(hours=2)
    made = desk.store.book(Draft("mine", ("slurm:hpc/n1",), start, start + timedelta(hours=1), "UTC"))
    answers[:] = [lambda: answer(jobs=[])]
    desk.open()
    desk.wait_until(lambda: desk.shown("mine") and mirrored)
    page = desk.page
    desk.wait_until(lambda: page.surface.picture.notes.get(made.id) == "not exclusive: hpc has no reservation")
    assert nodes(desk) == ["n1", "n2"]
    assert page.bar.free.text() == "Free now: 8 of 8 GPUs"
    page.surface.select(made.id)
    assert page.acts.edit.isEnabled()
    reservation = {"start": start.timestamp(), "end": start.timestamp() + HOUR, "nodes": ["n1"], "users": ["kim"]}
    named = {**reservation, "name": f"torchyard_{made.id}", "state": "INACTIVE"}
    read_clusters(desk, answers, lambda: answer(jobs=[], reservations=[named]))
    desk.wait_until(lambda: made.id not in page.surface.picture.notes)
    assert [block.booking.title for block in page.surface.picture.blocks] == ["mine"]
    page.hide()
    clock = page.clusters.findChild(QTimer)
    assert clock is not None
    assert clock.isActive()  # Bookings of nodes are mirrored while the page is hidden, too.
    desk.store.release(made.id)
    page.show()
    desk.wait_until(lambda: not desk.shown("mine"))
    page.hide()
    assert not clock.isActive()


def test_jobs_that_share_a_node_are_one_block_whose_details_list_them(
    desk: Desk, answers: list[Callable[[], ClusterCalendar]]
) -> None:
    now = NOW.timestamp()
    jobs = [
        {"id": str(number), "name": "", "user": user, "start": now, "end": now + HOUR, "nodes": ["n1"]}
        for number, user in ((7, "lee"), (8, "kim"))
    ]
    answers[:] = [lambda: answer(jobs=jobs)]
    desk.open()
    desk.wait_until(lambda: desk.shown("2 jobs"))
    (block,) = desk.page.surface.picture.blocks
    desk.page.surface.select(block.booking.id)
    assert desk.page.details.title.text() == "2 jobs"
    assert desk.page.details.purpose.text() == "job 7 · lee · to 10:00\njob 8 · kim · to 10:00"
    assert not desk.page.acts.edit.isEnabled()


def test_jobs_of_the_login_are_the_user_s(desk: Desk, answers: list[Callable[[], ClusterCalendar]]) -> None:
    answers[:] = [lambda: answer(user="lee")]
    desk.open()
    desk.wait_until(lambda: desk.shown("job 7 (train)"))
    desk.wait_until(lambda: desk.page.surface.picture.blocks[0].booking.owner == "kim")
    desk.page.surface.select("slurm:hpc/job 7")
    assert desk.page.details.who.text() == "You"


def test_a_fleet_of_a_cluster_alone_books_and_finds_nodes(
    desk: Desk, answers: list[Callable[[], ClusterCalendar]]
) -> None:
    desk.slots = ()
    desk.url = f"sqlite:///{desk.folder / 'empty.sqlite3'}"
    shown: list[Callable[[], ClusterCalendar]] = []

    def fail() -> ClusterCalendar:
        raise Unreachable("hpc", "hpc does not answer on port 22.")

    answers[:] = [fail]
    desk.open()
    desk.wait_until(lambda: desk.page.empty.isVisible())
    assert desk.page.empty.title.text() == "No nodes to book yet"
    shown.append(answer)
    read_clusters(desk, answers, *shown)
    desk.wait_until(lambda: nodes(desk) == ["n1", "n2"])
    desk.page.acts.book.trigger()
    dialog = desk.page.dialog
    assert isinstance(dialog, BookingDialog)
    assert (dialog.windowTitle(), dialog.gpus.placeholderText()) == ("Book nodes", "hpc:n1, hpc:n2")
    dialog.reject()
    desk.page.find_slot()
    assert desk.page.finder.cluster == "hpc"
    desk.wait_until(lambda: desk.page.finder.cards)

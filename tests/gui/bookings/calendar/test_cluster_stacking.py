"""Tests of jobs and reservations that share a node's lane with each other or with bookings."""

from __future__ import annotations

from dataclasses import replace

from tests.gui.bookings.calendar.test_display_list import MONDAY, booking
from torchyard_core.booking.model import Booking, Slot
from torchyard_gui.bookings.calendar.blocks import BAR
from torchyard_gui.bookings.calendar.cluster_stacking import ClusterStacking
from torchyard_gui.bookings.calendar.display_list import DisplayListBuilder
from torchyard_gui.bookings.calendar.lanes import LANE
from torchyard_gui.bookings.filters import Filter
from torchyard_gui.bridge.bookings_model import CalendarState

N1, N2 = "slurm:hpc/n1", "slurm:hpc/n2"
SLOTS = (Slot(N1, "hpc", 0, "4 × a100"), Slot(N2, "hpc", 1, "4 × a100"))


def job(number: int, nodes: str, begin: float, end: float, owner: str = "lee") -> Booking:
    return booking(nodes, begin, end, id=f"slurm:hpc/job {number}", title=f"job {number}", owner=owner)


def test_jobs_that_overlap_on_a_lane_are_one_block_with_a_list() -> None:
    first, second, third = job(1, f"{N1} {N2}", 0, 4), job(2, N1, 1, 6, "kim"), job(3, N1, 8, 9)
    found = ClusterStacking().of([first, second, third], "UTC")
    (group,) = found.groups
    assert (group.title, group.owner, group.gpus) == ("2 jobs", "lee, kim", (N1,))
    assert (group.start, group.end) == (first.start, second.end)
    assert group.purpose.splitlines() == ["job 1 · lee · to 04:00", "job 2 · kim · to 06:00"]
    assert {one.id: one.gpus for one in found.bookings} == {first.id: (N2,), third.id: (N1,), group.id: (N1,)}
    assert not found.bars


def test_a_job_in_the_time_of_a_booking_or_reservation_is_a_bar() -> None:
    own = booking(f"{N1} {N2}", 0, 4, id="own")
    reservation = booking(N1, 6, 9, id="slurm:hpc/reservation maint")
    inside, during, free = job(1, N2, 1, 2), job(2, N1, 5, 7), job(3, N1, 10, 12)
    stacking = ClusterStacking()
    found = stacking.of([own, reservation, inside, during, free], "UTC")
    assert found.bars == {inside.id, during.id}
    state = CalendarState(bookings=found.bookings, slots=SLOTS)
    picture = DisplayListBuilder().of(state, MONDAY, frozenset(), Filter(), {}, {}, {}, found.bars)
    heights = {block.booking.id: block.bottom - block.top for block in picture.blocks}
    assert heights == {"own": 2 * LANE, reservation.id: LANE, inside.id: BAR, during.id: BAR, free.id: LANE}
    blocks = {block.booking.id: block for block in picture.blocks}
    assert blocks[inside.id].bottom == blocks["own"].bottom
    assert [name for name, block in blocks.items() if picture.has_bar(block)] == ["own", reservation.id]


def test_a_reservation_in_the_time_of_a_booking_is_a_bar_together_with_its_jobs() -> None:
    own = booking(N1, 0, 8, id="own")
    maint = booking(N1, 2, 4, id="slurm:hpc/reservation maint", title="reservation maint")
    found = ClusterStacking().of([own, maint, job(1, N1, 3, 5)], "UTC")
    (group,) = found.groups
    assert group.title == "2 jobs and reservations"
    assert group.id in found.bars
    assert [one.id for one in found.bookings] == ["own", group.id]


def test_what_has_not_changed_is_the_same_object_and_a_new_bar_is_another_one() -> None:
    stacking, gpus, running = ClusterStacking(), booking("a0", 0, 4), job(1, N1, 1, 2)
    assert stacking.of([gpus, running], "UTC").bookings[1] is running
    own = booking(N1, 0, 4, id="own")
    (bar,) = (one for one in stacking.of([gpus, running, own], "UTC").bookings if one.id == running.id)
    assert bar is not running
    again = stacking.of([replace(gpus, title="changed"), running, own], "UTC")
    assert bar in again.bookings
    assert any(one is bar for one in again.bookings)


def test_a_folded_cluster_counts_each_node_once() -> None:
    own, running = booking(N1, 0, 4, id="own"), job(1, N1, 1, 6)
    found = ClusterStacking().of([own, running], "UTC")
    state = CalendarState(bookings=found.bookings, slots=SLOTS)
    picture = DisplayListBuilder().of(state, MONDAY, frozenset({"hpc"}), Filter(), {}, {}, {}, found.bars)
    assert [count for _, count in picture.folded["hpc"]] == [1]

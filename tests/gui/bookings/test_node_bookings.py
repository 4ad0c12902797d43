"""Tests of booking the nodes of a cluster in the window: each change reaches Slurm at once, or is taken back."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest
from PySide6.QtCore import QPoint, Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QLabel

from tests.gui.bookings.conftest import NOW, Desk
from tests.gui.bookings.fake_slurm import FakeSlurm, hold_of, use_fake_slurm
from tests.gui.geometry.faults import faults_of
from torchyard_core.booking.model import Booking
from torchyard_core.booking.store import BookingStore
from torchyard_core.engines import registry
from torchyard_core.engines.slurm.reservation_mirror import Mirrored
from torchyard_gui.bookings.dialogs.booking_dialog import BookingDialog
from torchyard_gui.theme.tokens import METRICS as M

N1, N2 = "slurm:hpc/n1", "slurm:hpc/n2"
HOUR = timedelta(hours=1)


@pytest.fixture
def slurm(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeSlurm]:
    made = use_fake_slurm(desk, monkeypatch)
    yield made
    made.answers.set()


@pytest.fixture
def page(desk: Desk, slurm: FakeSlurm) -> Desk:
    """Returns a desk whose page shows the lanes of the nodes, none of which is part of the calendar yet."""
    desk.open()
    desk.wait_until(lambda: N2 in desk.page.surface.picture.lanes.lane_of)
    assert not any(slot.node for slot in desk.model.seen.slots)
    return desk


def place(desk: Desk, slot: str, hours: float) -> QPoint:
    """Returns the position in the lane of a slot at the time `hours` from now, after scrolling to it."""
    surface = desk.page.surface
    row = surface.picture.lanes.lane_of[slot]
    bar = surface.verticalScrollBar()
    bar.setValue(bar.maximum())
    x = surface.axis.x_of((desk.now + hours * HOUR).timestamp())
    return QPoint(round(x) + M.lane_header, row.top + row.height // 2 - bar.value() + M.days_header)


def dialog(desk: Desk) -> BookingDialog:
    found = desk.page.dialog
    assert isinstance(found, BookingDialog)
    return found


def booked(desk: Desk, title: str = "on nodes") -> Booking:
    """Books both nodes by a drag, and returns the booking once the page shows it."""
    desk.drag(place(desk, N1, 2), place(desk, N2, 6))
    desk.accept(title)
    desk.wait_until(lambda: desk.shown(title))
    return desk.live()[title]


def test_a_drag_over_lanes_of_nodes_books_and_reserves_them(page: Desk, slurm: FakeSlurm) -> None:
    page.drag(place(page, N1, 2), place(page, N2, 6))
    shown = dialog(page)
    assert (shown.windowTitle(), shown.gpus.text()) == ("Book nodes", "hpc:n1, hpc:n2")
    assert not faults_of(shown)
    page.accept("on nodes")
    made = page.live()["on nodes"]
    assert made.gpus == (N1, N2)
    assert slurm.held == {made.id: hold_of(made)}
    page.wait_until(lambda: page.shown("on nodes"))
    assert made.id not in page.page.surface.picture.notes
    assert page.page.toast.label.text().startswith("Booked: hpc:n1, hpc:n2, ")


def test_the_keyboard_and_a_typed_name_book_a_node_and_a_part_of_one_is_refused(page: Desk, slurm: FakeSlurm) -> None:
    surface = page.page.surface
    QTest.mouseClick(surface.viewport(), Qt.MouseButton.LeftButton, pos=place(page, N2, 3))
    page.key(Qt.Key.Key_Return)
    shown = dialog(page)
    assert shown.gpus.text() == "hpc:n2"
    shown.gpus.setText("hpc:n2:0")
    QTest.keyClicks(shown.title, "by hand")
    QTest.keyClick(shown.title, Qt.Key.Key_Return)
    assert "Slurm reserves whole nodes" in shown.rows["gpus"].problem
    shown.gpus.setText("hpc:n1")
    page.accept()
    assert next(iter(slurm.held.values()))[0] == (N1,)


def test_a_refused_reservation_books_nothing_and_shows_why(page: Desk, slurm: FakeSlurm) -> None:
    slurm.refusal = "Requested nodes are busy"
    page.drag(place(page, N1, 2), place(page, N1, 6))
    shown = dialog(page)
    QTest.keyClicks(shown.title, "on nodes")
    QTest.keyClick(shown.title, Qt.Key.Key_Return)
    page.wait_until(lambda: "so nothing was booked: hpc: Requested nodes are busy" in shown.problem.text())
    assert shown.progress.isHidden()
    assert shown.ok.isEnabled()
    assert page.live() == {}
    assert slurm.held == {}
    assert page.page.commands.history.done == []


def test_the_dialog_shows_that_slurm_is_asked_and_cancel_takes_the_booking_back(page: Desk, slurm: FakeSlurm) -> None:
    page.drag(place(page, N1, 2), place(page, N1, 6))
    shown = dialog(page)
    QTest.keyClicks(shown.title, "on nodes")
    slurm.asked.clear()
    slurm.answers.clear()
    QTest.keyClick(shown.title, Qt.Key.Key_Return)
    page.wait_until(lambda: slurm.asked.is_set() and "on nodes" in page.live())
    assert shown.progress.isVisible()
    assert shown.work.text() == "Asking Slurm for the reservation …"
    assert not faults_of(shown)
    QTest.mouseClick(shown.no, Qt.MouseButton.LeftButton)
    page.wait_until(lambda: page.page.dialog is None)
    slurm.answers.set()
    page.wait_until(lambda: page.live() == {} and slurm.held == {})


def test_each_change_of_a_booking_reaches_slurm_and_is_undone_there(page: Desk, slurm: FakeSlurm) -> None:
    made = booked(page)
    commands, model = page.page.commands, page.model

    def settled(count: int) -> Booking | None:
        """Waits until there are `count` changes to undo; returns the booking, which Slurm has as it is."""
        page.wait_until(lambda: len(commands.history.done) == count and not commands._is_busy)
        now = page.live().get("on nodes")
        page.wait_until(lambda: now is None or model.booking(now.id) == now)
        assert slurm.held == ({} if now is None else {now.id: hold_of(now)})
        return now

    page.drag(place(page, N1, 4), place(page, N1, 8))
    moved = settled(2)
    assert moved is not None
    assert page.hours(moved.start) == 6
    commands.extend(moved, HOUR)
    extended = settled(3)
    assert extended is not None
    assert extended.end == moved.end + HOUR
    commands.change(extended, [N1], extended.start.timestamp(), extended.end.timestamp())
    assert settled(4).gpus == (N1,)  # type: ignore[union-attr]  # The booking is live.
    commands.release_or_cancel(page.live()["on nodes"])
    assert settled(5) is None
    for _ in range(4):
        page.page.acts.undo.trigger()
    again = settled(1)
    assert again is not None
    assert hold_of(again) == hold_of(made)
    page.page.acts.redo.trigger()
    assert settled(2) is not None


def test_a_refused_change_leaves_the_booking_and_its_reservation(page: Desk, slurm: FakeSlurm) -> None:
    made = booked(page)
    slurm.refusal = "Reservation overlaps another"
    page.page.commands.extend(made, HOUR)
    page.wait_until(lambda: "so nothing was changed: hpc: Reservation overlaps another" in page.page.notice.text)
    assert page.live()["on nodes"].end == made.end
    assert slurm.held == {made.id: hold_of(made)}
    assert not page.page.toast.isVisible()


def test_a_cluster_that_is_silent_after_the_booking_is_named_and_asked_again(page: Desk, slurm: FakeSlurm) -> None:
    slurm.is_silent = True
    made = booked(page)
    page.wait_until(lambda: "was not changed yet" in page.page.notice.text or page.page.clusters.errors)
    slurm.is_silent = False
    page.page.clusters.read()
    page.wait_until(lambda: slurm.held == {made.id: hold_of(made)})


def test_a_booking_of_a_user_who_may_not_reserve_is_marked(page: Desk, slurm: FakeSlurm) -> None:
    slurm.may_reserve = False
    made = booked(page)
    note = "not exclusive: hpc lets only operators reserve nodes"
    page.wait_until(lambda: page.page.surface.picture.notes.get(made.id) == note)
    page.page.surface.select("")
    page.page.surface.select(made.id)
    assert page.page.details.note.text() == note
    assert page.page.surface._painter.blocks._marks(made, page.page.surface.picture) == ["warning"]


def test_nodes_and_gpus_are_not_booked_together(page: Desk, slurm: FakeSlurm) -> None:
    start, end = (NOW + HOUR).timestamp(), (NOW + 2 * HOUR).timestamp()
    why = "A booking has either GPUs of hosts or nodes of one cluster. Make a booking for each."
    assert page.page.refuse(["GPU-b3", N1], start, end, None) == why
    made = booked(page)
    moved = page.page.refuse(["GPU-b2", "GPU-b3"], start, end, made)
    assert moved.startswith("A booking cannot be moved between a cluster and other hosts.")


def test_a_read_that_is_wanted_during_another_one_follows_it(page: Desk, slurm: FakeSlurm) -> None:
    lanes = page.page.clusters
    made = booked(page)
    page.wait_until(lambda: not lanes._is_reading("hpc") and not lanes._wanted)
    slurm.asked.clear()
    slurm.answers.clear()
    lanes.read()
    page.wait_until(slurm.asked.is_set)
    asked = lanes._reading["hpc"]
    lanes.read()
    lanes.read()
    assert lanes._reading["hpc"] is asked
    slurm.answers.set()
    page.wait_until(lambda: lanes._reading["hpc"] is not asked and not lanes._is_reading("hpc"))
    assert not lanes._wanted
    assert slurm.held == {made.id: hold_of(made)}


def test_a_booking_whose_reservation_was_deleted_in_slurm_is_named(
    page: Desk, slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = booked(page)

    def delete(fleet: object, name: str, store: BookingStore, folder: object) -> Mirrored:
        if store.booking(made.id).is_live:
            with store.in_the_name_of(name):
                store.release(made.id)
            return Mirrored(name, True, frozenset(), {}, (made,))
        return Mirrored(name, True, frozenset(), {})

    monkeypatch.setattr(registry, "mirror_reservations", delete)
    page.page.acts.refresh.trigger()  # F5 reads the clusters, too.
    page.wait_until(lambda: not page.shown("on nodes"))
    assert page.page.notice.text == "“on nodes” is no longer booked: its reservation was deleted in Slurm."


def test_changing_a_booking_of_a_cluster_that_has_left_the_fleet_says_that_slurm_keeps_its_reservation(
    page: Desk, slurm: FakeSlurm
) -> None:
    made = booked(page)
    page.fleet.fleet_file.write_text("version: 1\nhosts: []\n")
    page.fleet.refresh()
    page.page.commands.release_or_cancel(made)
    page.wait_until(lambda: "hpc is not in the fleet, so Slurm keeps the reservation" in page.page.notice.text)
    assert page.live() == {}


def test_a_drag_over_a_reservation_of_slurm_says_why_it_is_refused(page: Desk, slurm: FakeSlurm) -> None:
    slurm.others = [
        {"name": "maint", "start": (NOW + 3 * HOUR).timestamp(), "end": (NOW + 5 * HOUR).timestamp(), "nodes": ["n2"]}
    ]
    page.page.clusters.read()
    page.wait_until(lambda: page.shown("reservation maint"))
    start, end = (NOW + 2 * HOUR).timestamp(), (NOW + 4 * HOUR).timestamp()
    why = page.page.refuse([N1, N2], start, end, None)
    assert why == "hpc:n2: reservation maint in Slurm, today 12:00 – 14:00."
    assert page.page.refuse([N1], start, end, None) == ""


def test_a_booking_over_a_reservation_of_another_user_warns_who_may_not_reserve(page: Desk, slurm: FakeSlurm) -> None:
    slurm.may_reserve = False
    slurm.others = [
        {"name": "maint", "start": (NOW + 3 * HOUR).timestamp(), "end": (NOW + 5 * HOUR).timestamp(), "nodes": ["n2"]}
    ]
    page.page.clusters.read()
    page.wait_until(lambda: page.shown("reservation maint"))
    page.page.commands.book(page.page.commands.draft([N2], (NOW + 2 * HOUR).timestamp(), (NOW + 4 * HOUR).timestamp()))
    page.wait_until(lambda: "reservation maint in Slurm" in page.page.notice.text)
    assert page.live()


def test_the_question_before_a_release_says_that_a_run_is_on_the_booking(page: Desk, slurm: FakeSlurm) -> None:
    made = booked(page)
    for has_run in (False, True):
        page.page.has_live_run = lambda booking, has_run=has_run: booking.id == made.id and has_run
        page.page.surface.select("")
        page.page.surface.select(made.id)
        page.page.release_or_cancel()
        question = page.page.dialog
        assert question is not None
        texts = [one.text() for one in question.findChildren(QLabel)]
        assert any("A run is on it." in text for text in texts) == has_run
        question.reject()


def test_find_a_slot_finds_nodes_of_a_cluster(page: Desk, slurm: FakeSlurm) -> None:
    page.page.find_slot()
    finder = page.page.finder
    assert [finder.on.itemText(number) for number in range(finder.on.count())][-1] == "nodes of hpc"
    finder.on.setCurrentIndex(finder.on.count() - 1)
    assert finder.count_row.name.text() == "Nodes"
    assert not any(row.isVisible() for row in finder.gpu_rows)
    finder.count.setValue(2)
    page.wait_until(lambda: page.page.drawers.fits and page.page.drawers.fits[0].gpus == (N1, N2))
    assert not finder.wait.isEnabled()
    page.wait_until(lambda: not faults_of(finder))  # The cards are laid out soon.
    page.page.book_fit(0)
    page.wait_until(lambda: len(slurm.held) == 1)


def test_the_agenda_is_sorted_by_start_and_names_nodes(page: Desk, slurm: FakeSlurm) -> None:
    booked(page)
    slurm.others = [
        {"name": "maint", "start": (NOW + HOUR).timestamp(), "end": (NOW + 2 * HOUR).timestamp(), "nodes": ["n2"]}
    ]
    page.page.clusters.read()
    page.wait_until(lambda: page.shown("reservation maint"))
    page.page.bar.views.set_value("agenda")
    rows = page.page.agenda.rows_
    assert [rows.data(rows.index(number, 1)) for number in range(rows.rowCount())] == ["reservation maint", "on nodes"]
    assert rows.headerData(3, Qt.Orientation.Horizontal) == "GPUs and nodes"

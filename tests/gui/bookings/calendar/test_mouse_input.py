"""Tests of mouse input in the calendar: bookings are drawn, moved, resized and selected."""

from __future__ import annotations

import pytest
from PySide6.QtCore import QEvent, QPoint, QPointF, QRect, Qt
from PySide6.QtGui import QMouseEvent
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication

from tests.gui.bookings.conftest import LEFT, Desk
from torchyard_core.booking.rules.team_rules import Rules
from torchyard_gui.bookings.calendar.gestures import ResizeBooking
from torchyard_gui.widgets.dialogs import ConfirmationDialog


def test_a_drag_over_lanes_and_hours_books_them_after_enter(desk: Desk) -> None:
    desk.open()
    desk.drag(desk.place("a1", 2), desk.place("a3", 8))
    desk.accept("by hand")
    booked = desk.live()["by hand"]
    assert booked.gpus == ("GPU-a1", "GPU-a2", "GPU-a3")
    assert (desk.hours(booked.start), desk.hours(booked.end)) == (2, 8)
    desk.wait_until(lambda: desk.shown("by hand"))


def test_a_drag_goes_by_hours_in_the_week_and_by_quarters_with_alt_and_in_the_day(desk: Desk) -> None:
    desk.open()
    surface = desk.page.surface

    def drawn(modifiers: Qt.KeyboardModifier = Qt.KeyboardModifier.NoModifier) -> tuple[float, float]:
        begin, end = QPointF(desk.place("a1", 2.3)), QPointF(desk.place("a1", 6.3))
        buttons = Qt.MouseButton.LeftButton, Qt.MouseButton.LeftButton
        for kind, at in ((QEvent.Type.MouseButtonPress, begin), (QEvent.Type.MouseMove, end)):
            event = QMouseEvent(kind, at, surface.viewport().mapToGlobal(at), *buttons, modifiers)
            QApplication.sendEvent(surface.viewport(), event)
        assert surface.ghost is not None
        ((_, _, start, until),) = surface.ghost.boxes
        surface.cancel()
        return (start - desk.now.timestamp()) / 3600, (until - desk.now.timestamp()) / 3600

    assert drawn() == (2, 6)
    assert drawn(Qt.KeyboardModifier.AltModifier) == (2.25, 6.25)
    desk.page.acts.day.trigger()
    assert drawn() == (2.25, 6.25)


def test_a_drag_to_another_lane_keeps_a_time_that_is_off_the_grid(desk: Desk) -> None:
    booking = desk.book("a0", 4.4, 6, "mine")
    desk.open()
    desk.wait_until(lambda: desk.shown("mine"))
    desk.drag(desk.place("a0", 7), desk.place("a2", 7) + QPoint(1, 0))
    desk.wait_until(lambda: desk.store.booking(booking.id).gpus == ("GPU-a2",))
    assert desk.store.booking(booking.id).interval == booking.interval


def test_a_drag_over_another_users_booking_shows_the_reason_at_the_cursor_and_books_nothing(desk: Desk) -> None:
    desk.book("a2", 3, 2, "theirs", "lee")
    desk.open()
    desk.wait_until(lambda: desk.shown("theirs"))
    surface = desk.page.surface
    desk.drag(desk.place("a1", 2), desk.place("a3", 8), drop=False)
    assert surface.tip.isVisible()
    assert "booked by lee ('theirs')" in surface.tip.text()
    assert surface.ghost is not None
    assert surface.ghost.reason
    QTest.mouseRelease(surface.viewport(), LEFT, pos=desk.place("a3", 8))
    assert desk.page.dialog is None
    assert "booked by lee" in desk.page.notice.text
    assert set(desk.live()) == {"theirs"}


def test_the_times_of_a_drag_lie_over_an_open_drawer(desk: Desk) -> None:
    booking = desk.book("a0", 4, 4, "mine")
    desk.open()
    desk.wait_until(lambda: desk.shown("mine"))
    page, tip = desk.page, desk.page.surface.tip
    page.surface.select(booking.id)
    drawer = page.drawers.current
    assert drawer is not None
    assert drawer.x() < page.surface.width(), "the drawer covers a part of the calendar"
    start = desk.place("a0", 6)
    desk.drag(start, QPoint(drawer.x() - 8, start.y()), drop=False)
    over = QRect(tip.mapTo(page, QPoint()), tip.size())
    assert over.intersects(QRect(drawer.mapTo(page, QPoint()), drawer.size()))
    inside = tip.rect().adjusted(4, 4, -4, -4)
    shown = page.grab(inside.translated(over.topLeft())).toImage()
    assert shown == tip.grab(inside).toImage().convertToFormat(shown.format())
    desk.key(Qt.Key.Key_Escape)
    assert not tip.isVisible()


def test_escape_calls_off_a_drag(desk: Desk) -> None:
    booking = desk.book("a0", 4, 4, "mine")
    desk.open()
    desk.wait_until(lambda: desk.shown("mine"))
    for begin in (desk.place("b0", 2), desk.place("a0", 6)):
        desk.drag(begin, begin + QPoint(40, 24), drop=False)
        assert desk.page.surface.ghost is not None
        desk.key(Qt.Key.Key_Escape)
        assert desk.page.surface.ghost is None
        assert not desk.page.surface.tip.isVisible()
        QTest.mouseRelease(desk.page.surface.viewport(), LEFT, pos=begin + QPoint(40, 24))
    assert desk.store.booking(booking.id) == booking
    assert desk.page.dialog is None


def test_dragging_ones_own_booking_moves_all_its_gpus_together(desk: Desk) -> None:
    booking = desk.book("a0 a1", 4, 6, "mine")
    desk.open()
    desk.wait_until(lambda: desk.shown("mine"))
    desk.drag(desk.place("a0", 7), desk.place("a2", 17))
    desk.wait_until(lambda: desk.store.booking(booking.id).gpus == ("GPU-a2", "GPU-a3"))
    moved = desk.store.booking(booking.id)
    assert abs(desk.hours(moved.start) - 14) <= 0.25
    assert moved.duration == booking.duration


def test_a_drag_of_a_booking_that_is_not_selected_moves_it_and_selects_it_at_the_release(desk: Desk) -> None:
    booking = desk.book("a0", 4, 8, "mine")
    desk.open()
    desk.page.resize(1500, 700)
    desk.wait_until(lambda: desk.shown("mine"))
    page, begin, end = desk.page, desk.place("a0", 8), desk.place("a2", 8)
    desk.drag(begin, end, drop=False)
    assert page.surface.selection == ""
    assert page.drawers.current is None, "a drawer beside the calendar would move the booking under the pointer"
    assert desk.place("a0", 8) == begin
    QTest.mouseRelease(page.surface.viewport(), LEFT, pos=end)
    assert page.surface.selection == booking.id
    desk.wait_until(lambda: desk.store.booking(booking.id).gpus == ("GPU-a2",))
    assert desk.store.booking(booking.id).interval == booking.interval


def test_both_ends_resize(desk: Desk) -> None:
    booking = desk.book("a0 a1", 12, 12, "mine")
    desk.open()
    desk.wait_until(lambda: desk.shown("mine"))
    end = desk.place("a0", 24) - QPoint(3, 0)
    desk.drag(end, desk.place("a0", 30))
    desk.wait_until(lambda: desk.store.booking(booking.id).end > booking.end)
    assert abs(desk.hours(desk.store.booking(booking.id).end) - 30) <= 0.5
    desk.wait_until(lambda: any(block.booking.end > booking.end for block in desk.page.surface.picture.blocks))
    begin = desk.place("a1", 12) + QPoint(2, 0)
    QTest.mousePress(desk.page.surface.viewport(), LEFT, pos=begin)
    assert isinstance(desk.page.surface.gesture, ResizeBooking)
    QTest.mouseMove(desk.page.surface.viewport(), desk.place("a1", 6))
    QTest.mouseRelease(desk.page.surface.viewport(), LEFT, pos=desk.place("a1", 6))
    desk.wait_until(lambda: desk.store.booking(booking.id).start < booking.start)


def test_a_running_booking_cannot_be_moved_and_anothers_not_at_all(desk: Desk) -> None:
    running = desk.book_long_ago("a0", -10, 24, "running")
    desk.store.set_rules(Rules())
    desk.open()
    desk.wait_until(lambda: desk.shown("running"))
    desk.drag(desk.place("a0", 4), desk.place("a1", 10))
    assert "has begun" in desk.page.notice.text
    assert desk.store.booking(running.id) == running


def test_a_click_selects_and_the_drawer_tells_and_releases(desk: Desk) -> None:
    booking = desk.book_long_ago("a0", -10, 24, "running")
    desk.open()
    desk.wait_until(lambda: desk.shown("running"))
    QTest.mouseClick(desk.page.surface.viewport(), LEFT, pos=desk.place("a0", 4))
    assert desk.page.details.isVisible()
    assert desk.page.details.title.text() == "running"
    desk.page.acts.release.trigger()
    assert isinstance(desk.page.dialog, ConfirmationDialog)
    desk.page.dialog.yes.click()
    desk.wait_until(lambda: not desk.store.booking(booking.id).is_live)
    assert desk.store.booking(booking.id).until == desk.now


def test_nothing_asks_the_store_while_dragging(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.open()
    asked: list[str] = []
    monkeypatch.setattr(desk.model, "ask", lambda *args, **more: asked.append("ask"))
    monkeypatch.setattr(desk.model, "act", lambda *args, **more: asked.append("act"))
    refused: list[str] = []
    whole = desk.page.surface.refuse
    desk.page.surface.refuse = lambda *args: refused.append("") or whole(*args)  # type: ignore[func-returns-value]  # append() returns None.
    viewport = desk.page.surface.viewport()
    begin = desk.place("a0", 2)
    QTest.mousePress(viewport, LEFT, pos=begin)
    for x in range(80):
        QTest.mouseMove(viewport, begin + QPoint(x, 0))
    desk.key(Qt.Key.Key_Escape)
    assert asked == []
    assert 2 < len(refused) < 70  # A drag is validated once per quarter of an hour, not at each mouse move.

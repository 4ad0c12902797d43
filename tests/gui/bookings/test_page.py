"""The Bookings page under real mouse and keys, on a real calendar in SQLite."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from PySide6.QtCore import QPoint, Qt
from PySide6.QtGui import QAccessible, QGuiApplication
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QToolTip

from tests.gui.bookings.conftest import LEFT, SLOTS, Desk
from torchyard_core.booking.model import IdleEvidence, Use
from torchyard_core.booking.rules import Rules
from torchyard_gui.bookings.booking_dialog import BookingDialog
from torchyard_gui.bookings.gestures.resize_booking import ResizeBooking
from torchyard_gui.bookings.surface import Surface
from torchyard_gui.theme.tokens import METRICS as M
from torchyard_gui.widgets.question import Question

Key, SHIFT = Qt.Key, Qt.KeyboardModifier.ShiftModifier
CONTROL = Qt.KeyboardModifier.ControlModifier


def hours(desk: Desk, moment: datetime) -> float:
    return (moment - desk.now) / timedelta(hours=1)


def accept(desk: Desk, title: str = "") -> None:
    """Enter in the dialog that is open, after its title was typed."""
    dialog = desk.page.dialog
    assert isinstance(dialog, BookingDialog)
    if title:
        QTest.keyClicks(dialog.title, title)
    QTest.keyClick(dialog.title, Key.Key_Return)
    desk.wait(lambda: desk.page.dialog is None)


# -- looking


def test_it_opens_on_this_week_with_lanes_blocks_and_what_is_free(desk: Desk) -> None:
    desk.book("a0 a1", 0, 5, "mine")
    desk.book("b0", 0, 5, "theirs", "lee")
    desk.store.record_use([Use("GPU-b3", "gpu-b", "sam", desk.now - timedelta(hours=1), desk.now)])
    desk.open()
    desk.wait(lambda: desk.shown("mine") and desk.shown("theirs"))
    assert desk.page.bar.title.text() == "6 – 12 January 2031"
    assert desk.page.bar.free.text() == "Free now: 4 of 8 GPUs"  # three booked; one used, though nobody booked it
    assert list(desk.page.surface.picture.usage.unbooked) == ["GPU-b3"]
    assert desk.page.legend.place.text() == "Only on this computer."
    assert desk.page.legend.share.isVisible()


def test_what_another_desktop_books_arrives_by_itself(desk: Desk) -> None:
    desk.open()
    desk.book("a2", 1, 2, "from elsewhere", "lee")
    desk.wait(lambda: desk.shown("from elsewhere"))


def test_day_week_month_and_the_days_before_and_after(desk: Desk) -> None:
    desk.book("a0", 24 * 9, 2, "next week")
    desk.open()
    page = desk.page
    page.acts.later.trigger()
    desk.wait(lambda: desk.shown("next week"))
    assert page.bar.title.text() == "13 – 19 January 2031"
    page.acts.month.trigger()
    assert page.bar.title.text() == "January 2031"
    assert len(page.surface.axis.days) == 31
    page.acts.day.trigger()
    page.acts.today.trigger()
    assert page.bar.title.text() == "Wednesday 8 January 2031"
    QTest.keyClick(page.surface, Key.Key_PageDown)
    assert page.bar.title.text() == "Thursday 9 January 2031"


def test_a_click_on_a_host_folds_it_and_counts_its_bookings(desk: Desk) -> None:
    desk.book("a0 a1 a2", 1, 5, "mine")
    desk.open()
    desk.wait(lambda: desk.shown("mine"))
    surface = desk.page.surface
    QTest.mouseClick(surface.viewport(), LEFT, pos=QPoint(60, M.days_header + 10))
    assert [row.kind for row in surface.picture.lanes.rows[:2]] == ["folded", "host"]
    assert [count for _, count in surface.picture.folded["gpu-a"]] == [3]
    QTest.mouseClick(surface.viewport(), LEFT, pos=QPoint(60, M.days_header + 10))
    assert surface.picture.lanes.rows[0].kind == "host"


def test_finding_pales_what_does_not_match_and_filters_take_lanes_away(desk: Desk) -> None:
    one, other = desk.book("a0", 1, 5, "digits"), desk.book("b0", 1, 5, "letters", "lee")
    desk.open()
    desk.wait(lambda: desk.shown("letters"))
    QTest.keyClick(desk.page.surface, Key.Key_F, CONTROL)
    QTest.keyClicks(desk.page.bar.search_field, "letters")
    assert desk.page.surface.picture.paled == {one.id}
    desk.page.bar.search_field.clear()
    desk.page.bar.offer(desk.model.seen)
    choices = {action.text(): action for action in desk.page.bar.filter_menu.actions()}
    choices["H100 80 GB"].trigger()
    assert {row.host for row in desk.page.surface.picture.lanes.rows} == {"gpu-b"}
    choices["kim"].trigger()
    assert desk.page.surface.picture.paled == {other.id}


def test_hovering_tells_all_of_a_booking_and_the_zone(desk: Desk) -> None:
    desk.book("a0 a1", 1, 5, "mine")
    desk.open()
    desk.wait(lambda: desk.shown("mine"))
    told = desk.page.surface.told_at(desk.place("a0", 3))
    assert told.startswith("mine\nYou · 2 GPUs\nToday 10:00 – 15:00 (Europe/Berlin)")
    assert "Europe/Berlin" in desk.page.surface.told_at(QPoint(300, 10))
    QToolTip.hideText()


# -- the mouse


def test_a_drag_over_lanes_and_hours_books_them_after_enter(desk: Desk) -> None:
    desk.open()
    desk.drag(desk.place("a1", 2), desk.place("a3", 8))
    accept(desk, "by hand")
    booked = desk.live()["by hand"]
    assert booked.gpus == ("GPU-a1", "GPU-a2", "GPU-a3")
    assert abs(hours(desk, booked.start) - 2) <= 0.25
    assert abs(hours(desk, booked.end) - 8) <= 0.25
    assert booked.start.minute % 15 == 0
    desk.wait(lambda: desk.shown("by hand"))


def test_a_drag_over_somebodys_booking_says_why_not_beside_the_cursor_and_books_nothing(desk: Desk) -> None:
    desk.book("a2", 3, 2, "theirs", "lee")
    desk.open()
    desk.wait(lambda: desk.shown("theirs"))
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


def test_escape_calls_off_a_drag(desk: Desk) -> None:
    booking = desk.book("a0", 4, 4, "mine")
    desk.open()
    desk.wait(lambda: desk.shown("mine"))
    for begin in (desk.place("b0", 2), desk.place("a0", 6)):
        desk.drag(begin, begin + QPoint(40, 24), drop=False)
        assert desk.page.surface.ghost is not None
        desk.key(Key.Key_Escape)
        assert desk.page.surface.ghost is None
        assert not desk.page.surface.tip.isVisible()
        QTest.mouseRelease(desk.page.surface.viewport(), LEFT, pos=begin + QPoint(40, 24))
    assert desk.store.booking(booking.id) == booking
    assert desk.page.dialog is None


def test_dragging_ones_own_booking_moves_all_its_gpus_together(desk: Desk) -> None:
    booking = desk.book("a0 a1", 4, 6, "mine")
    desk.open()
    desk.wait(lambda: desk.shown("mine"))
    desk.drag(desk.place("a0", 7), desk.place("a2", 17))
    desk.wait(lambda: desk.store.booking(booking.id).gpus == ("GPU-a2", "GPU-a3"))
    moved = desk.store.booking(booking.id)
    assert abs(hours(desk, moved.start) - 14) <= 0.25
    assert moved.duration == booking.duration


def test_both_ends_resize(desk: Desk) -> None:
    booking = desk.book("a0 a1", 12, 12, "mine")
    desk.open()
    desk.wait(lambda: desk.shown("mine"))
    end = desk.place("a0", 24) - QPoint(3, 0)
    desk.drag(end, desk.place("a0", 30))
    desk.wait(lambda: desk.store.booking(booking.id).end > booking.end)
    assert abs(hours(desk, desk.store.booking(booking.id).end) - 30) <= 0.5
    desk.wait(lambda: any(block.booking.end > booking.end for block in desk.page.surface.picture.blocks))
    begin = desk.place("a1", 12) + QPoint(2, 0)
    QTest.mousePress(desk.page.surface.viewport(), LEFT, pos=begin)
    assert isinstance(desk.page.surface.gesture, ResizeBooking)
    QTest.mouseMove(desk.page.surface.viewport(), desk.place("a1", 6))
    QTest.mouseRelease(desk.page.surface.viewport(), LEFT, pos=desk.place("a1", 6))
    desk.wait(lambda: desk.store.booking(booking.id).start < booking.start)


def test_a_running_booking_cannot_be_moved_and_anothers_not_at_all(desk: Desk) -> None:
    running = desk.book_long_ago("a0", -10, 24, "running")
    desk.store.set_rules(Rules())
    desk.open()
    desk.wait(lambda: desk.shown("running"))
    desk.drag(desk.place("a0", 4), desk.place("a1", 10))
    assert "has begun" in desk.page.notice.text
    assert desk.store.booking(running.id) == running


def test_a_click_selects_and_the_drawer_tells_and_releases(desk: Desk) -> None:
    booking = desk.book_long_ago("a0", -10, 24, "running")
    desk.open()
    desk.wait(lambda: desk.shown("running"))
    QTest.mouseClick(desk.page.surface.viewport(), LEFT, pos=desk.place("a0", 4))
    assert desk.page.details.isVisible()
    assert desk.page.details.title.text() == "running"
    desk.page.acts.release.trigger()
    assert isinstance(desk.page.dialog, Question)
    desk.page.dialog.yes.click()
    desk.wait(lambda: not desk.store.booking(booking.id).is_live)
    assert desk.store.booking(booking.id).until == desk.now


def test_nothing_asks_the_store_while_dragging(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.open()
    asked: list[str] = []
    monkeypatch.setattr(desk.model, "ask", lambda *args, **more: asked.append("ask"))
    monkeypatch.setattr(desk.model, "act", lambda *args, **more: asked.append("act"))
    refused: list[str] = []
    whole = desk.page.surface.refuse
    desk.page.surface.refuse = lambda *args: refused.append("") or whole(*args)  # type: ignore[func-returns-value]
    viewport = desk.page.surface.viewport()
    begin = desk.place("a0", 2)
    QTest.mousePress(viewport, LEFT, pos=begin)
    for x in range(80):
        QTest.mouseMove(viewport, begin + QPoint(x, 0))
    desk.key(Key.Key_Escape)
    assert asked == []
    assert 2 < len(refused) < 70  # once a quarter of an hour, not once a pixel


# -- the keyboard


def test_arrows_shift_and_enter_book(desk: Desk) -> None:
    desk.open()
    desk.key(Key.Key_Down)  # puts the keyboard at the next hour of the first lane
    first = desk.page.surface.cursor_
    assert first is not None
    desk.key(Key.Key_Down)
    desk.key(Key.Key_Right)
    desk.key(Key.Key_Down, SHIFT)
    desk.key(Key.Key_Right, SHIFT)
    desk.key(Key.Key_Return)
    accept(desk, "by keys")
    booked = desk.live()["by keys"]
    assert booked.gpus == ("GPU-a1", "GPU-a2")
    assert booked.start.timestamp() == first.start + 900
    assert booked.duration == timedelta(hours=1, minutes=15)


def test_brackets_move_the_edges_and_nothing_changes_before_enter(desk: Desk) -> None:
    booking = desk.book("a0", 1, 2, "mine")
    desk.open()
    desk.wait(lambda: desk.shown("mine"))
    desk.key(Key.Key_Down)  # the next hour: it is on the booking
    assert desk.page.surface.selection == booking.id
    desk.key(Key.Key_BracketRight)
    desk.key(Key.Key_BracketRight)
    desk.key(Key.Key_BracketLeft)
    assert desk.page.surface.ghost is not None
    assert desk.store.booking(booking.id) == booking
    desk.key(Key.Key_Return)
    desk.wait(lambda: desk.store.booking(booking.id).end == booking.end + timedelta(minutes=30))
    assert desk.store.booking(booking.id).start == booking.start - timedelta(minutes=15)


def test_escape_takes_back_moved_edges(desk: Desk) -> None:
    booking = desk.book("a0", 1, 2, "mine")
    desk.open()
    desk.wait(lambda: desk.shown("mine"))
    desk.key(Key.Key_Down)
    desk.key(Key.Key_BracketRight)
    desk.key(Key.Key_Escape)
    assert desk.page.surface.ghost is None
    assert desk.store.booking(booking.id) == booking


def test_undo_takes_back_ones_last_change(desk: Desk) -> None:
    booking = desk.book("a0", 4, 2, "mine")
    desk.open()
    desk.wait(lambda: desk.shown("mine"))
    desk.page.surface.select(booking.id)
    desk.page.acts.extend.trigger()
    desk.wait(lambda: desk.store.booking(booking.id).end == booking.end + timedelta(hours=1))
    desk.wait(desk.page.acts.undo.isEnabled)
    assert desk.page.acts.undo.text() == "Undo: change “mine”"
    desk.page.acts.undo.trigger()
    desk.wait(lambda: desk.store.booking(booking.id).end == booking.end)


def test_pasting_a_line_opens_it_for_booking(desk: Desk) -> None:
    desk.open()
    QGuiApplication.clipboard().setText("gpu-b:2-3 tomorrow 9-17 probe")
    QTest.keyClick(desk.page.surface, Key.Key_V, CONTROL)
    accept(desk)
    booked = desk.live()["probe"]
    assert booked.gpus == ("GPU-b2", "GPU-b3")
    assert booked.start == datetime(2031, 1, 9, 8, tzinfo=UTC)
    QGuiApplication.clipboard().setText("good morning")
    desk.page.acts.paste.trigger()
    assert "does not begin with GPUs" in desk.page.notice.text


def test_the_command_that_books_the_same_is_copied(desk: Desk) -> None:
    booking = desk.book("a0 a1", 1, 2, "mine")
    desk.open()
    desk.wait(lambda: desk.shown("mine"))
    desk.page.surface.select(booking.id)
    desk.page.acts.copy.trigger()
    assert QGuiApplication.clipboard().text().startswith("torchyard book gpu-a:0-1 --from '2031-01-08 10:00'")


def test_screen_readers_get_the_bookings_as_a_table_and_every_field_has_a_name(desk: Desk) -> None:
    desk.book("a0 a1", 1, 2, "mine")
    desk.open()
    desk.wait(lambda: desk.shown("mine"))
    desk.page.acts.agenda.trigger()
    told = QAccessible.queryAccessibleInterface(desk.page.agenda)
    assert told is not None
    assert told.text(QAccessible.Text.Name) == "Agenda"
    row = [desk.page.agenda.rows_.index(0, column).data() for column in range(6)]
    assert row == ["Today 10:00 – 12:00", "mine", "You", "gpu-a:0-1", "2 h", "booked"]
    desk.page.agenda.selectRow(0)
    assert desk.page.details.title.text() == "mine"
    desk.page.acts.week.trigger()
    desk.page.surface.setFocus()
    desk.key(Key.Key_Escape)
    desk.page.surface.set_cursor(None)
    desk.key(Key.Key_Up)
    assert "mine" in desk.page.surface.accessibleDescription() or "gpu-a:0" in desk.page.surface.accessibleDescription()


# -- idle, away, many


def test_what_agents_saw_idle_is_told_and_freed_by_the_first_desktop(desk: Desk) -> None:
    warned = desk.book_long_ago("a0", -2, 8, "warned")
    gone = desk.book_long_ago("a1", -2, 8, "gone")
    minutes = timedelta(minutes=1)
    desk.store.record_idle(
        [
            IdleEvidence(warned.id, desk.now - 21 * minutes, desk.now),
            IdleEvidence(gone.id, desk.now - 60 * minutes, desk.now),
        ]
    )
    desk.open()
    desk.wait(lambda: not desk.store.booking(gone.id).is_live)
    desk.wait(lambda: desk.page.surface.picture.notes)
    assert desk.page.surface.picture.notes == {warned.id: "idle 21 min, frees 09:09"}
    assert desk.page.notice.text == "1 bookings were idle, and are free now."


def test_with_the_calendar_away_the_last_state_is_shown_with_its_age_nothing_is_booked_and_it_recovers(
    desk: Desk,
) -> None:
    desk.book("a0", 1, 5, "mine")
    desk.open()
    desk.wait(lambda: desk.shown("mine"))
    seen = desk.now
    desk.is_away = True
    desk.calendar.close()
    desk.now = seen + timedelta(minutes=40)
    desk.model.reload()
    desk.wait(lambda: not desk.model.seen.is_live)
    assert desk.shown("mine")
    assert "This is of 09:00, 40 min ago" in desk.page.notice.text
    assert desk.page.bar.free.text() == "Free now: ? of 8 GPUs"
    assert not desk.page.acts.book.isEnabled()
    desk.drag(desk.place("b0", 4), desk.place("b1", 9), drop=False)
    assert "away" in desk.page.surface.tip.text()
    desk.key(Key.Key_Escape)
    QTest.mouseRelease(desk.page.surface.viewport(), LEFT, pos=desk.place("b1", 9))
    desk.is_away = False
    desk.calendar._away = None  # its own pause between two attempts is by a clock that stands still here
    desk.model.reload()
    desk.wait(lambda: desk.model.seen.is_live)
    assert desk.page.acts.book.isEnabled()
    assert desk.page.notice.isHidden()


def test_an_empty_fleet_is_told_what_to_do_first(desk: Desk) -> None:
    desk.slots = ()
    desk.store.close()
    (desk.folder / "bookings.sqlite3").unlink()
    desk.__post_init__()
    desk.open()
    desk.wait(desk.page.empty.isVisible)
    assert "Fleet page" in desk.page.empty.sentence.text()
    assert not desk.page.surface.isVisible()


def test_the_surface_is_one_widget_however_many_bookings_there_are(desk: Desk) -> None:
    for hour in range(12):
        desk.book("a0 a1 b2", 1 + hour * 2, 1, f"run {hour}")
    desk.open()
    desk.wait(lambda: desk.shown("run 11"))
    assert isinstance(desk.page.surface, Surface)
    assert len(desk.page.surface.picture.blocks) == 24
    assert len(SLOTS) == len(desk.page.surface.picture.lanes.lanes)

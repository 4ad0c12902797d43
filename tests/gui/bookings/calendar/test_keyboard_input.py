"""Tests of keyboard input in the calendar: bookings are made, changed and copied, and have accessible descriptions."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from PySide6.QtCore import Qt
from PySide6.QtGui import QAccessible, QGuiApplication
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QComboBox

from tests.gui.bookings.conftest import NOW, ZONE, Desk
from torchyard_core.booking.model import Draft
from torchyard_gui.bookings.dialogs.booking_dialog import BookingDialog

Key, SHIFT = Qt.Key, Qt.KeyboardModifier.ShiftModifier
CONTROL = Qt.KeyboardModifier.ControlModifier


def test_arrows_shift_and_enter_book(desk: Desk) -> None:
    desk.open()
    desk.key(Key.Key_Down)  # The first key places the cursor in the first lane, at the next hour.
    first = desk.page.surface.cursor_
    assert first is not None
    desk.key(Key.Key_Down)
    desk.key(Key.Key_Right)
    desk.key(Key.Key_Down, SHIFT)
    desk.key(Key.Key_Right, SHIFT)
    desk.key(Key.Key_Return)
    desk.accept("by keys")
    booked = desk.live()["by keys"]
    assert booked.gpus == ("GPU-a1", "GPU-a2")
    assert booked.start.timestamp() == first.start + 900
    assert booked.duration == timedelta(hours=1, minutes=15)


def test_brackets_move_the_edges_and_nothing_changes_before_enter(desk: Desk) -> None:
    booking = desk.book("a0", 1, 2, "mine")
    desk.open()
    desk.wait_until(lambda: desk.shown("mine"))
    desk.key(Key.Key_Down)  # The first key places the cursor at the next hour, where the booking will begin.
    assert desk.page.surface.selection == booking.id
    desk.key(Key.Key_BracketRight)
    desk.key(Key.Key_BracketRight)
    desk.key(Key.Key_BracketLeft)
    assert desk.page.surface.ghost is not None
    assert desk.store.booking(booking.id) == booking
    desk.key(Key.Key_Return)
    desk.wait_until(lambda: desk.store.booking(booking.id).end == booking.end + timedelta(minutes=30))
    assert desk.store.booking(booking.id).start == booking.start - timedelta(minutes=15)


def test_escape_takes_back_moved_edges(desk: Desk) -> None:
    booking = desk.book("a0", 1, 2, "mine")
    desk.open()
    desk.wait_until(lambda: desk.shown("mine"))
    desk.key(Key.Key_Down)
    desk.key(Key.Key_BracketRight)
    desk.key(Key.Key_Escape)
    assert desk.page.surface.ghost is None
    assert desk.store.booking(booking.id) == booking


def test_undo_takes_back_ones_last_change(desk: Desk) -> None:
    booking = desk.book("a0", 4, 2, "mine")
    desk.open()
    desk.wait_until(lambda: desk.shown("mine"))
    desk.page.surface.select(booking.id)
    desk.page.acts.extend.trigger()
    desk.wait_until(lambda: desk.store.booking(booking.id).end == booking.end + timedelta(hours=1))
    desk.wait_until(desk.page.acts.undo.isEnabled)
    assert desk.page.acts.undo.text() == "Undo: change “mine”"
    desk.is_away = True
    desk.calendar.close()
    desk.page.acts.undo.trigger()
    desk.wait_until(lambda: desk.page.commands.history.done and "not answer" in desk.page.notice.text)
    desk.is_away = False
    desk.calendar._away = None  # Ends the retry delay, which the stopped test clock would never end.
    desk.page.commands.undo()  # The first undo failed, because the calendar was unreachable.
    desk.wait_until(lambda: desk.store.booking(booking.id).end == booking.end)

    # Undoing restores a cancelled series, except where other users have booked in the meantime.
    draft = Draft("weekly", ("GPU-b0",), NOW + timedelta(hours=2), NOW + timedelta(hours=3), ZONE)
    weekly = desk.store.book_series(draft, "FREQ=DAILY;COUNT=3").booked
    desk.page.commands.cancel_series(weekly[0])
    desk.wait_until(lambda: "weekly" not in desk.live() and desk.page.commands.history.done)
    desk.store.book(Draft("quicker", ("GPU-b0",), weekly[1].start, weekly[1].end, ZONE, owner="lee"))
    desk.page.commands.undo()
    desk.wait_until(lambda: "2 of 3 bookings changed; gpu-b:0 is booked by lee" in desk.page.notice.text)
    live = desk.store.bookings(NOW, NOW + timedelta(days=5), live=True)
    assert [one.start for one in live if one.title == "weekly"] == [weekly[0].start, weekly[2].start]


def test_bookings_of_a_series_are_changed_and_cancelled_from_one_on(desk: Desk) -> None:
    draft = Draft("weekly", ("GPU-b0",), NOW + timedelta(hours=2), NOW + timedelta(hours=3), ZONE)
    made = desk.store.book_series(draft, "FREQ=DAILY;COUNT=4").booked
    alone = desk.book("a0", 4, 2, "alone")
    desk.open()
    desk.wait_until(lambda: desk.shown("weekly") and desk.shown("alone"))
    desk.page.dialogs.edit(alone)
    dialog = desk.page.dialog
    assert isinstance(dialog, BookingDialog)
    assert not dialog.rows["applies"].isVisible()
    desk.page.dialogs.edit(made[1])
    dialog = desk.page.dialog
    assert isinstance(dialog, BookingDialog)
    assert dialog.rows["applies"].isVisible()
    dialog.applies.setFocus()
    QTest.keyClick(dialog.applies, Key.Key_Down)
    assert dialog.applies.currentText() == "this and following bookings"
    dialog.start.setText(dialog.start.text().replace(":00", ":30"))
    dialog.end.setText("+2h")
    desk.accept()
    later = [(one.start + timedelta(minutes=30), one.start + timedelta(hours=2.5)) for one in made[1:]]

    def times() -> list[tuple[datetime, datetime]]:
        live = desk.store.bookings(NOW, NOW + timedelta(days=5), live=True)
        return [(one.start, one.end) for one in live if one.title == "weekly"]

    assert times() == [(made[0].start, made[0].end), *later]
    desk.wait_until(desk.page.acts.undo.isEnabled)
    assert desk.page.acts.undo.text() == "Undo: change the series “weekly”"
    desk.page.commands.undo()
    desk.wait_until(lambda: times() == [(one.start, one.end) for one in made])

    desk.page.dialogs.cancel_series(desk.store.booking(made[2].id))
    question = desk.page.dialog
    assert question is not None
    which = question.findChild(QComboBox)
    assert which is not None
    QTest.keyClick(which, Key.Key_Down)
    question.accept()
    desk.wait_until(lambda: times() == [(one.start, one.end) for one in made[:2]])


def test_pasting_a_line_opens_it_for_booking(desk: Desk) -> None:
    desk.open()
    QGuiApplication.clipboard().setText("gpu-b:2-3 tomorrow 9-17 probe")
    QTest.keyClick(desk.page.surface, Key.Key_V, CONTROL)
    desk.accept()
    booked = desk.live()["probe"]
    assert booked.gpus == ("GPU-b2", "GPU-b3")
    assert booked.start == datetime(2031, 1, 9, 8, tzinfo=UTC)
    QGuiApplication.clipboard().setText("good morning")
    desk.page.acts.paste.trigger()
    assert "does not begin with GPUs" in desk.page.notice.text


def test_the_command_that_books_the_same_is_copied(desk: Desk) -> None:
    booking = desk.book("a0 a1", 1, 2, "mine")
    desk.open()
    desk.wait_until(lambda: desk.shown("mine"))
    desk.page.surface.select(booking.id)
    desk.page.acts.copy.trigger()
    assert QGuiApplication.clipboard().text().startswith("torchyard book gpu-a:0-1 --from '2031-01-08 10:00'")


def test_screen_readers_get_the_bookings_as_a_table_and_every_field_has_a_name(desk: Desk) -> None:
    desk.book("a0 a1", 1, 2, "mine")
    desk.open()
    desk.wait_until(lambda: desk.shown("mine"))
    desk.page.surface.select(next(iter(desk.live().values())).id)
    desk.page.acts.agenda.trigger()
    assert desk.page.agenda.currentIndex().row() == 0, "what is selected in the calendar is selected here"
    desk.page.go(4)
    assert desk.page.agenda.nothing.text() == "No bookings on these days."
    assert desk.page.agenda.nothing.isVisible()
    desk.page.go_today()
    assert not desk.page.agenda.nothing.isVisible()
    told = QAccessible.queryAccessibleInterface(desk.page.agenda)
    assert told is not None
    assert told.text(QAccessible.Text.Name) == "Agenda"
    row = [desk.page.agenda.rows_.index(0, column).data() for column in range(6)]
    assert row == ["Today 10:00 – 12:00", "mine", "You", "gpu-a:0-1", "2 h", "booked"]
    desk.page.agenda.selectRow(0)
    assert desk.page.details.title.text() == "mine"
    desk.wait_until(lambda: desk.page.details.history.isVisible())
    said = desk.page.details.history.text().splitlines()
    assert desk.page.details.history_title.text() == "HISTORY"
    assert desk.page.details.history_title.isVisible()
    assert said[0].endswith(" booked it")
    assert said[1:] == ["mine", "Today 10:00 – 12:00", "gpu-a:0-1"]
    desk.page.acts.week.trigger()
    desk.page.surface.setFocus()
    desk.key(Key.Key_Escape)
    desk.page.surface.set_cursor(None)
    desk.key(Key.Key_Up)
    assert "mine" in desk.page.surface.accessibleDescription() or "gpu-a:0" in desk.page.surface.accessibleDescription()

"""Tests of undo and redo of changes to the calendar."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from PySide6.QtCore import Qt

from tests.gui.bookings.conftest import NOW, ZONE, Desk
from torchyard_core.booking.errors import Refused
from torchyard_core.booking.model import Booking, Draft
from torchyard_gui.bookings.undo import MOST_CHANGES, CalendarChange, ChangeHistory, PartlyRefused, changed, ended, made

HOUR = timedelta(hours=1)


def shown(desk: Desk, title: str) -> tuple[tuple[str, ...], float, float] | None:
    """Returns the GPUs, the start and the end of an active booking; the times are in hours from now."""
    booking = desk.live().get(title)
    return None if booking is None else (booking.gpus, desk.hours(booking.start), desk.hours(booking.end))


def test_all_changes_are_undone_and_redone_by_keys(desk: Desk) -> None:
    booking = desk.book("a0", 4, 2, "mine")
    desk.open()
    page, acts = desk.page, desk.page.acts
    desk.wait_until(lambda: desk.shown("mine"))
    page.surface.select(booking.id)
    page.commands.change(booking, ["GPU-a2"], booking.start.timestamp(), booking.end.timestamp())
    desk.wait_until(lambda: shown(desk, "mine") == (("GPU-a2",), 4, 6) and page.commands.history.done)
    moved = desk.live()["mine"]
    desk.wait_until(lambda: page.model.booking(booking.id) == moved)
    page.commands.extend(moved, HOUR)
    desk.wait_until(lambda: len(page.commands.history.done) == 2)
    page.commands.release_or_cancel(desk.live()["mine"])
    desk.wait_until(lambda: len(page.commands.history.done) == 3)
    assert shown(desk, "mine") is None

    # Keys that are pressed in quick succession are handled in order.
    undo, redo = (
        Qt.KeyboardModifier.ControlModifier,
        Qt.KeyboardModifier.ControlModifier | Qt.KeyboardModifier.ShiftModifier,
    )
    for _ in range(3):
        desk.key(Qt.Key.Key_Z, undo)
    desk.wait_until(lambda: shown(desk, "mine") == (("GPU-a0",), 4, 6) and len(page.commands.history.undone) == 3)
    assert not acts.undo.isEnabled()
    assert acts.redo.text() == "Redo: change “mine”"
    for _ in range(3):
        desk.key(Qt.Key.Key_Z, redo)
    desk.wait_until(lambda: shown(desk, "mine") is None and len(page.commands.history.done) == 3)
    for _ in range(2):
        desk.key(Qt.Key.Key_Z, undo)
    desk.wait_until(lambda: shown(desk, "mine") == (("GPU-a2",), 4, 6) and len(page.commands.history.undone) == 2)
    assert page.toast.label.text() == "Undone: change “mine”"
    assert page.toast.button.text() == "Redo"
    # After a new change, no change can be redone.
    desk.wait_until(lambda: desk.shown("mine"))
    page.commands.extend(desk.live()["mine"], HOUR)
    desk.wait_until(lambda: not page.commands.history.undone)
    assert not acts.redo.isEnabled()


def test_a_booking_that_was_changed_meanwhile_is_left_alone(desk: Desk) -> None:
    booking = desk.book("a0", 4, 2, "mine")
    desk.open()
    desk.page.commands.extend(booking, HOUR)
    desk.wait_until(lambda: desk.page.commands.history.done)
    lee = desk.reach(desk.url, "lee")
    lee.change(booking.id, title="taken over")
    lee.close()
    desk.page.commands.undo()
    desk.wait_until(lambda: desk.page.notice.text)
    expected = "“taken over” was changed by lee on Wed 2031-01-08 09:00, and stays as it is"
    assert expected in desk.page.notice.text
    assert shown(desk, "taken over") == (("GPU-a0",), 4, 7)
    assert not desk.page.commands.history.done


def test_a_drag_does_not_overwrite_a_change_that_the_calendar_does_not_show_yet(desk: Desk) -> None:
    booking = desk.book("a0", 4, 2, "mine")
    desk.open()
    desk.store.change(booking.id, end=booking.end + HOUR)
    desk.page.commands.change(booking, ["GPU-a1"], booking.start.timestamp(), booking.end.timestamp())
    desk.wait_until(lambda: "was changed by kim" in desk.page.notice.text)
    assert shown(desk, "mine") == (("GPU-a0",), 4, 7)


def test_a_release_is_undone_even_where_the_start_has_passed(desk: Desk) -> None:
    history = ChangeHistory()
    booking = desk.book("a0", 0, 4, "mine")
    desk.now = NOW + HOUR
    history.add(CalendarChange("release", ended([desk.store.release(booking.id)])))
    desk.now = NOW + 2 * HOUR
    release = history.done.pop()
    history.apply(desk.store, release.reverted)
    assert shown(desk, "mine") == (("GPU-a0",), 0, 2)
    history.apply(desk.store, release)
    assert shown(desk, "mine") is None


def test_bookings_of_a_series_move_without_overlap_and_refusals_are_counted(desk: Desk) -> None:
    draft = Draft("daily", ("GPU-b0",), NOW + 2 * HOUR, NOW + 26 * HOUR, ZONE)
    bookings = desk.store.book_series(draft, "FREQ=DAILY;COUNT=3").booked
    moved = desk.store.change_series(bookings[0].id, everything=True, start=bookings[0].start + HOUR)
    history = ChangeHistory()
    change = CalendarChange("move", changed(bookings, moved))
    history.add(change)
    undone = history.apply(desk.store, change.reverted)
    assert [one.after for one in undone.bookings] == list(bookings)
    history.apply(desk.store, change)

    def times() -> list[Booking]:
        return [one for one in desk.store.bookings(NOW, NOW + timedelta(days=9), live=True) if one.title == "daily"]

    assert [one.start for one in times()] == [one.start for one in moved]
    desk.store.release(times()[1].id)
    with pytest.raises(PartlyRefused, match="2 of 3 bookings changed; “daily” was cancelled by kim on") as refusal:
        history.apply(desk.store, change.reverted)
    assert len(refusal.value.part.bookings) == 2
    assert [one.start for one in times()] == [bookings[0].start, bookings[2].start]


def test_only_a_number_of_changes_is_kept(desk: Desk) -> None:
    history = ChangeHistory()
    booking = desk.book("a0", 4, 2, "mine")
    for number in range(MOST_CHANGES + 5):
        history.add(CalendarChange(str(number), made([booking])))
    assert [one.what for one in history.done] == [str(number) for number in range(5, MOST_CHANGES + 5)]
    stale = replace(booking, purpose="something else")
    with pytest.raises(Refused, match="was changed by kim"):
        desk.store.release(booking.id, expected=stale)
    # A launch adds its run ID to the booking. This does not count as a conflicting change.
    desk.store.change(booking.id, run_id="20310108-080000-aaaa")
    desk.store.release(booking.id, expected=booking)

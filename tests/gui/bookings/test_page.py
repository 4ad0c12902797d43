"""Tests of the Bookings page: what it shows, idle bookings, and an unreachable calendar."""

from __future__ import annotations

from datetime import timedelta

from PySide6.QtCore import QPoint, Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QToolTip

from tests.gui.bookings.conftest import LEFT, SLOTS, Desk
from torchyard_core.booking.model import IdleEvidence, Use
from torchyard_gui.bookings.calendar.calendar_view import CalendarView
from torchyard_gui.theme.tokens import METRICS as M

Key, CONTROL = Qt.Key, Qt.KeyboardModifier.ControlModifier


# Tests of the displayed bookings


def test_it_opens_on_this_week_with_lanes_blocks_and_what_is_free(desk: Desk) -> None:
    desk.book("a0 a1", 0, 5, "mine")
    desk.book("b0", 0, 5, "theirs", "lee")
    desk.store.record_use([Use("GPU-b3", "gpu-b", "sam", desk.now - timedelta(hours=1), desk.now)])
    desk.open()
    desk.wait_until(lambda: desk.shown("mine") and desk.shown("theirs"))
    assert desk.page.bar.title.text() == "6 – 12 January 2031"
    # Three GPUs are booked. A fourth GPU is in use without a booking.
    assert desk.page.bar.free.text() == "Free now: 4 of 8 GPUs"
    assert list(desk.page.surface.picture.usage.unbooked) == ["GPU-b3"]
    assert desk.page.legend.place.text() == "Only on this computer."
    assert desk.page.legend.share.isVisible()


def test_what_another_desktop_books_arrives_by_itself(desk: Desk) -> None:
    desk.open()
    desk.book("a2", 1, 2, "from elsewhere", "lee")
    desk.wait_until(lambda: desk.shown("from elsewhere"))


def test_day_week_month_and_the_days_before_and_after(desk: Desk) -> None:
    desk.book("a0", 24 * 9, 2, "next week")
    desk.open()
    page = desk.page
    page.acts.later.trigger()
    desk.wait_until(lambda: desk.shown("next week"))
    assert page.bar.title.text() == "13 – 19 January 2031"
    page.acts.month.trigger()
    assert page.bar.title.text() == "January 2031"
    assert len(page.surface.axis.days) == 31
    page.acts.day.trigger()
    page.acts.today.trigger()
    assert page.bar.title.text() == "Wednesday 8 January 2031"
    QTest.keyClick(page.surface, Key.Key_PageDown)
    assert page.bar.title.text() == "Thursday 9 January 2031"


def test_switching_views_stays_at_the_chosen_day_and_the_agenda_lists_what_follows(desk: Desk) -> None:
    desk.book("a0", 24 * 9, 2, "next week")
    desk.open()
    page = desk.page
    for there, back in ((page.acts.earlier, page.acts.later), (page.acts.later, page.acts.earlier)):
        page.acts.month.trigger()
        there.trigger()
        back.trigger()
        page.acts.day.trigger()
        assert page.bar.title.text() == "Wednesday 8 January 2031"
    page.acts.later.trigger()
    for action in (page.acts.week, page.acts.month, page.acts.day):
        action.trigger()
    assert page.bar.title.text() == "Thursday 9 January 2031"
    page.acts.agenda.trigger()
    assert page.bar.title.text() == "9 Jan – 5 Feb 2031"
    desk.wait_until(lambda: page.agenda.rows_.rowCount() == 1)
    assert page.agenda.rows_.index(0, 1).data() == "next week"


def test_esc_closes_the_drawer_and_another_click_opens_it_again(desk: Desk) -> None:
    desk.book("a0", 1, 5, "mine")
    desk.open()
    desk.wait_until(lambda: desk.shown("mine"))
    page = desk.page
    for _ in range(2):
        QTest.mouseClick(page.surface.viewport(), LEFT, pos=desk.place("a0", 3))
        assert page.details.isVisible()
        desk.key(Key.Key_Escape)
        assert not page.details.isVisible()
    page.acts.find.trigger()
    page.surface.setFocus()
    desk.key(Key.Key_Escape)
    assert not page.finder.isVisible()
    page.acts.agenda.trigger()
    page.acts.waitlist.trigger()
    page.agenda.setFocus()
    QTest.keyClick(page.agenda, Key.Key_Escape)
    assert not page.waitlist.isVisible()


def test_the_agenda_opens_details_only_for_a_row_that_the_user_chooses(desk: Desk) -> None:
    desk.book("a0", 1, 5, "mine")
    desk.book("a1", 1, 5, "other")
    desk.open()
    page = desk.page
    page.acts.agenda.trigger()
    desk.wait_until(lambda: page.agenda.rows_.rowCount() == 2 and page.agenda.hasFocus())
    page.refresh()
    assert page.drawers.current is None
    QTest.keyClick(page.agenda, Key.Key_Down)
    assert page.details.isVisible()
    QTest.keyClick(page.agenda, Key.Key_Escape)
    page.refresh()
    assert page.drawers.current is None


def test_a_new_booking_is_selected_though_the_calendar_is_drawn_before_it_is_loaded(desk: Desk) -> None:
    desk.open()
    page = desk.page
    booking = desk.book("a0", 1, 2, "mine")
    page.commands.done.emit(booking.id)
    assert desk.model.booking(booking.id) is None, "no event has been processed yet, so it is not loaded"
    page.refresh()  # The page does this whenever the GPU use changes.
    assert page.surface.selection == ""
    desk.model.reload()
    desk.wait_until(lambda: desk.shown("mine") and page.surface.selection == booking.id)
    page.surface.select("")
    desk.book("a1", 1, 2, "later")
    desk.model.reload()
    desk.wait_until(lambda: desk.shown("later"))
    assert page.surface.selection == "", "it is selected once"


def test_a_new_booking_is_not_selected_over_one_that_the_user_has_chosen_meanwhile(desk: Desk) -> None:
    other = desk.book("a1", 1, 5, "other")
    desk.open()
    desk.wait_until(lambda: desk.shown("other"))
    page = desk.page
    page.commands.done.emit(desk.book("a0", 1, 5, "mine").id)
    QTest.mouseClick(page.surface.viewport(), LEFT, pos=desk.place("a1", 3))
    assert page.surface.selection == other.id
    desk.model.reload()
    desk.wait_until(lambda: desk.shown("mine"))
    assert page.surface.selection == other.id


def test_an_undone_booking_leaves_no_trace_in_the_calendar(desk: Desk) -> None:
    desk.open()
    desk.store.release(desk.book("a0", 0, 5, "undone").id)
    kept = desk.book("a1", 0, 5, "kept")
    desk.wait_until(lambda: desk.shown("kept"))
    assert not desk.shown("undone")
    desk.now += timedelta(minutes=5)
    desk.store.release(kept.id)
    desk.model.reload()
    desk.wait_until(lambda: any(not block.booking.is_live for block in desk.page.surface.picture.blocks))
    assert desk.shown("kept"), "its five minutes are part of the past"


def test_a_click_on_a_host_folds_it_and_counts_its_bookings(desk: Desk) -> None:
    desk.book("a0 a1 a2", 1, 5, "mine")
    desk.open()
    desk.wait_until(lambda: desk.shown("mine"))
    surface = desk.page.surface
    QTest.mouseClick(surface.viewport(), LEFT, pos=QPoint(60, M.days_header + 10))
    assert [row.kind for row in surface.picture.lanes.rows[:2]] == ["folded", "host"]
    assert [count for _, count in surface.picture.folded["gpu-a"]] == [3]
    QTest.mouseClick(surface.viewport(), LEFT, pos=QPoint(60, M.days_header + 10))
    assert surface.picture.lanes.rows[0].kind == "host"


def test_finding_pales_what_does_not_match_and_filters_take_lanes_away(desk: Desk) -> None:
    one, other = desk.book("a0", 1, 5, "digits"), desk.book("b0", 1, 5, "letters", "lee")
    desk.open()
    desk.wait_until(lambda: desk.shown("letters"))
    QTest.keyClick(desk.page.surface, Key.Key_F, CONTROL)
    QTest.keyClicks(desk.page.bar.search_field, "letters")
    assert desk.page.surface.picture.dimmed == {one.id}
    desk.page.bar.search_field.clear()
    desk.page.bar.offer(desk.model.seen)
    choices = {action.text(): action for action in desk.page.bar.filter_menu.actions()}
    choices["H100 80 GB"].trigger()
    assert {row.host for row in desk.page.surface.picture.lanes.rows} == {"gpu-b"}
    choices["kim"].trigger()
    assert desk.page.surface.picture.dimmed == {other.id}


def test_hovering_tells_all_of_a_booking_and_the_zone(desk: Desk) -> None:
    desk.book("a0 a1", 1, 5, "mine")
    desk.open()
    desk.wait_until(lambda: desk.shown("mine"))
    told = desk.page.surface.tooltip_at(desk.place("a0", 3))
    assert told.startswith("mine\nYou · 2 GPUs\nToday 10:00 – 15:00 (Europe/Berlin)")
    assert "Europe/Berlin" in desk.page.surface.tooltip_at(QPoint(300, 10))
    QToolTip.hideText()


# Tests of idle bookings, an unreachable calendar and large numbers of bookings


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
    desk.wait_until(lambda: not desk.store.booking(gone.id).is_live)
    desk.wait_until(lambda: desk.page.surface.picture.notes)
    assert desk.page.surface.picture.notes == {warned.id: "idle 21 min, frees 09:09"}
    assert desk.page.notice.text == "1 idle booking was released."


def test_with_the_calendar_away_the_last_state_is_shown_with_its_age_nothing_is_booked_and_it_recovers(
    desk: Desk,
) -> None:
    desk.book("a0", 1, 5, "mine")
    desk.open()
    desk.wait_until(lambda: desk.shown("mine"))
    seen = desk.now
    desk.is_away = True
    desk.calendar.close()
    desk.now = seen + timedelta(minutes=40)
    desk.model.reload()
    desk.wait_until(lambda: not desk.model.seen.is_live)
    assert desk.shown("mine")
    assert "Shown as of 09:00, 40 min ago" in desk.page.notice.text
    assert desk.page.bar.free.text() == "Free now: ? of 8 GPUs"
    assert not desk.page.acts.book.isEnabled()
    desk.drag(desk.place("b0", 4), desk.place("b1", 9), drop=False)
    assert "unreachable" in desk.page.surface.tip.text()
    desk.key(Key.Key_Escape)
    QTest.mouseRelease(desk.page.surface.viewport(), LEFT, pos=desk.place("b1", 9))
    desk.is_away = False
    desk.calendar._away = None  # Ends the retry delay, which the stopped test clock would never end.
    desk.model.reload()
    desk.wait_until(lambda: desk.model.seen.is_live)
    assert desk.page.acts.book.isEnabled()
    assert desk.page.notice.isHidden()


def test_an_empty_fleet_is_told_what_to_do_first(desk: Desk) -> None:
    desk.slots = ()
    desk.store.close()
    (desk.folder / "bookings.sqlite3").unlink()
    desk.__post_init__()
    desk.open()
    desk.wait_until(desk.page.empty.isVisible)
    assert "Fleet page" in desk.page.empty.sentence.text()
    assert not desk.page.surface.isVisible()


def test_the_surface_is_one_widget_however_many_bookings_there_are(desk: Desk) -> None:
    for hour in range(12):
        desk.book("a0 a1 b2", 1 + hour * 2, 1, f"run {hour}")
    desk.open()
    desk.wait_until(lambda: desk.shown("run 11"))
    assert isinstance(desk.page.surface, CalendarView)
    assert len(desk.page.surface.picture.blocks) == 24
    assert len(SLOTS) == len(desk.page.surface.picture.lanes.lanes)

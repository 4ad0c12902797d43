"""Tests of drawers and dialogs of the Bookings page: find a slot, waitlist, booking, files, usage and rules."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QPushButton

from tests.gui.bookings.conftest import Desk
from torchyard_core.booking.ics import export_ics
from torchyard_core.booking.model import Use
from torchyard_core.booking.rules.team_rules import Rules
from torchyard_core.booking.search.slot_search import Wish
from torchyard_gui.bookings.dialogs.booking_dialog import BookingDialog
from torchyard_gui.bookings.dialogs.ics_import_export import ImportDialog, export_bookings
from torchyard_gui.bookings.dialogs.rules_dialog import RulesDialog
from torchyard_gui.bookings.dialogs.usage_dialog import UsageDialog

Key = Qt.Key


def dialog_of(desk: Desk) -> BookingDialog:
    assert isinstance(desk.page.dialog, BookingDialog)
    return desk.page.dialog


def test_find_a_slot_shows_five_numbered_fits_in_list_and_calendar_and_enter_books_the_first(desk: Desk) -> None:
    desk.book("a0 a1 a2", 0, 24, "mine")
    desk.open()
    desk.page.acts.find.trigger()
    find = desk.page.finder
    find.count.setValue(4)
    find.length.setText("6h")
    find.search()
    desk.wait_until(lambda: len(find.cards) == 5 and len(desk.page.surface.fits[0].gpus) == 4)
    first = desk.page.surface.fits[0]
    assert first.gpus == ("GPU-b0", "GPU-b1", "GPU-b2", "GPU-b3")
    assert find.cards[0].accessibleName().startswith("1: Today 09:00 – 15:00, gpu-b:0-3 · H100 80 GB")
    desk.wait_until(lambda: find.summary.text() == "Now: at most 4 free on one host (gpu-b).")
    QTest.keyClicks(find.title_, "found")
    QTest.keyClick(find.length, Key.Key_Return)
    desk.wait_until(lambda: "found" in desk.live())
    assert desk.live()["found"].gpus == first.gpus
    assert not find.isVisible()
    assert desk.page.surface.fits == ()


def test_a_wish_that_cannot_be_read_or_ever_be_met_says_so(desk: Desk) -> None:
    desk.open()
    desk.page.acts.find.trigger()
    find = desk.page.finder
    find.length.setText("long")
    find.search()
    assert "not a length of time" in find.length_row.note.text()
    find.length.setText("6h")
    find.count.setValue(5)
    find.search()
    desk.wait_until(lambda: "o host has 5 GPUs of that kind" in find.summary.text())
    assert not find.wait.isEnabled()  # No host has that many GPUs, so waiting would be useless.
    find.count.setValue(4)
    find.search()
    desk.wait_until(lambda: len(find.cards) == 5)
    assert not find.wait.isEnabled(), "there is nothing to wait for"
    assert find.wait.toolTip() == "These GPUs are free now: book them."


def test_who_waits_is_listed_in_order_gets_what_is_freed_and_can_leave(desk: Desk) -> None:
    blocking = desk.book("a0 a1 a2 a3 b0 b1 b2 b3", 0, 24 * 7, "all of it")
    desk.open()
    desk.wait_until(lambda: desk.shown("all of it"))
    desk.page.acts.find.trigger()
    find = desk.page.finder
    find.title_.setText("waits")
    QTest.mouseClick(find.wait, Qt.MouseButton.LeftButton)
    desk.wait_until(lambda: desk.model.seen.waiting)
    desk.page.acts.waitlist.trigger()
    assert len(desk.page.waitlist.cards) == 1
    desk.now += timedelta(seconds=1)
    desk.store.wait(Wish(1, timedelta(hours=1), desk.now), "second")
    desk.wait_until(lambda: len(desk.page.waitlist.cards) == 2)
    QTest.mouseClick(desk.page.waitlist.leave_buttons[1], Qt.MouseButton.LeftButton)
    desk.wait_until(lambda: len(desk.page.waitlist.cards) == 1)
    assert desk.store.waiting()[0].title == "waits"
    desk.store.release(blocking.id)
    desk.now += timedelta(minutes=2)
    desk.model.reload()
    desk.wait_until(lambda: "waits" in desk.live())


def test_a_waiting_request_is_booked_only_before_the_first_free_slot(desk: Desk) -> None:
    blocking = desk.book("a0 a1 a2 a3 b0 b1 b2 b3", 0, 24, "all of it")
    desk.open()
    desk.wait_until(lambda: desk.shown("all of it"))
    desk.page.acts.find.trigger()
    find = desk.page.finder
    find.count.setValue(4)
    find.length.setText("6h")
    find.search()
    desk.wait_until(lambda: len(find.cards) == 5)
    assert "earlier than tomorrow 09:00 – 15:00" in find.wait.toolTip()
    QTest.mouseClick(find.wait, Qt.MouseButton.LeftButton)
    desk.wait_until(lambda: desk.model.seen.waiting)
    desk.store.serve_waiting()
    assert set(desk.live()) == {"all of it"}, "the free slot of tomorrow is not booked"
    desk.store.release(blocking.id)
    desk.store.serve_waiting()
    assert desk.live()["Reserved"].start == desk.now


def test_a_click_or_an_arrow_selects_a_slot_in_list_and_calendar_and_only_the_button_books(desk: Desk) -> None:
    desk.open()
    desk.page.acts.find.trigger()
    find, surface = desk.page.finder, desk.page.surface
    find.count.setValue(4)
    find.search()
    desk.wait_until(lambda: len(find.cards) == 5)

    def selected() -> list[int]:
        assert surface.chosen_fit == find.chosen
        return [card.number for card in find.cards if card.property("selected")]

    assert selected() == [0]
    QTest.mouseClick(find.cards[2], Qt.MouseButton.LeftButton)
    assert selected() == [2]
    assert find.book.text() == "Book slot 3"
    QTest.keyClick(find.cards[2], Key.Key_Down)
    assert selected() == [3]
    before, card = find.cards[3].fit, find.cards[3]
    find.search()
    desk.wait_until(lambda: len(find.cards) == 5 and find.cards[3].fit is not before)
    assert selected() == [3], "a repeated search keeps the selection and the focus"
    assert find.cards[3] is card, "the card under the pointer is not replaced"
    assert card.hasFocus()
    find.count.setValue(8)
    find.search()
    desk.wait_until(lambda: not find.cards)
    assert find.count.hasFocus(), "no host has eight GPUs, and the number can be corrected"
    find.count.setValue(4)
    find.search()
    desk.wait_until(lambda: len(find.cards) == 5)
    QTest.mouseDClick(find.cards[4], Qt.MouseButton.LeftButton)
    assert selected() == [4]
    fit = surface.fits[0]
    hours = desk.hours(fit.start) + 0.5
    QTest.mouseClick(
        surface.viewport(), Qt.MouseButton.LeftButton, pos=desk.place(fit.gpus[0].removeprefix("GPU-"), hours)
    )
    assert selected() == [0]
    desk.page.surface.setFocus()
    desk.key(Key.Key_Down)
    assert selected() == [1]
    assert not desk.live(), "nothing was booked by selecting"
    wanted = surface.fits[1]
    QTest.mouseClick(find.book, Qt.MouseButton.LeftButton)
    desk.wait_until(lambda: "Reserved" in desk.live())
    assert (desk.live()["Reserved"].gpus, desk.live()["Reserved"].start) == (wanted.gpus, wanted.start)


def test_a_slot_that_begins_now_can_be_booked_however_long_the_drawer_is_open(desk: Desk) -> None:
    desk.open()
    desk.page.acts.find.trigger()
    find = desk.page.finder
    desk.wait_until(lambda: len(find.cards) == 5)
    QTest.mouseClick(find.cards[1], Qt.MouseButton.LeftButton)
    desk.now += timedelta(minutes=10)
    desk.page._tick()
    desk.wait_until(lambda: find.cards and find.cards[0].fit.start == desk.now)
    assert find.chosen == 1, "the selection stays"
    QTest.mouseClick(find.cards[0], Qt.MouseButton.LeftButton)
    QTest.mouseClick(find.book, Qt.MouseButton.LeftButton)
    desk.wait_until(lambda: desk.live())
    assert desk.live()["Reserved"].start == desk.now


def test_find_a_slot_offers_no_gpu_in_use_and_says_which(desk: Desk) -> None:
    desk.open()
    desk.page.acts.find.trigger()
    find = desk.page.finder
    find.count.setValue(4)
    find.search()
    desk.wait_until(lambda: len(find.cards) == 5 and find.cards[0].fit.start == desk.now)
    desk.observe("gpu-a", {0: "kim"})
    desk.observe("gpu-b", {1: "lee"})
    assert desk.page.bar.free.text() == "Free now: 6 of 8 GPUs"
    desk.wait_until(lambda: find.cards and find.cards[0].fit.start > desk.now)
    assert find.cards[0].accessibleName().startswith("1: Today 17:00 – 21:00")
    desk.wait_until(lambda: "without a booking, offered from 17:00: gpu-a:0, gpu-b:1." in find.summary.text())
    assert not find.wait.isEnabled(), "no booking is in the way"
    find.count.setValue(3)
    find.search()
    desk.wait_until(lambda: find.cards and find.cards[0].fit.start == desk.now)
    assert "GPU-a0" not in find.cards[0].fit.gpus
    desk.observe("gpu-a", {})
    desk.wait_until(lambda: desk.page.bar.free.text() == "Free now: 7 of 8 GPUs")


def test_the_dialog_repeats_books_the_free_ones_and_lists_the_clashes(desk: Desk) -> None:
    desk.book("a0", 24 * 7 + 4, 2, "in the way", "lee")
    desk.open()
    desk.page.acts.book.trigger()
    dialog = dialog_of(desk)
    dialog.title.setText("weekly")
    dialog.gpus.setText("gpu-a:0")
    dialog.start.setText("2031-01-08 13:00")
    dialog.end.setText("+2h")
    dialog.repeat.setCurrentText("weekly")
    dialog.times.setText("3")
    assert dialog.free_ones.isVisible()
    dialog.free_ones.setChecked(True)
    dialog.accept()
    desk.wait_until(lambda: "Not booked:" in dialog.problem.text())
    assert dialog.problem.text().startswith("2 booked. Not booked:\nWed 15 Jan 13:00 – 15:00: gpu-a:0 is booked by lee")
    found = desk.store.bookings(desk.now, desk.now + timedelta(days=30))
    assert [one.title for one in found] == ["weekly", "in the way", "weekly"]
    dialog.reject()


def test_a_clash_in_the_dialog_offers_the_nearest_free_places(desk: Desk) -> None:
    desk.book("a0", 4, 2, "in the way", "lee")
    desk.open()
    desk.page.acts.book.trigger()
    dialog = dialog_of(desk)
    for field, text in ((dialog.title, "x"), (dialog.gpus, "gpu-a:0"), (dialog.start, "13:00"), (dialog.end, "+2h")):
        field.setText(text)
    dialog.accept()
    desk.wait_until(lambda: "booked by lee" in dialog.problem.text())
    assert dialog.problem.text().startswith("gpu-a:0 is booked"), "a name stays as it is"
    # The next error replaces the first one, and its field gets the focus.
    dialog.end.setText("soon")
    dialog.accept()
    assert dialog.problem.text() == ""
    assert dialog.focusWidget() is dialog.end
    assert "not a time" in dialog.end.accessibleDescription()
    dialog.end.setText("+2h")
    dialog.accept()
    desk.wait_until(lambda: "booked by lee" in dialog.problem.text())
    ways = [item.widget() for number in range(dialog.ways.count()) if (item := dialog.ways.itemAt(number))]
    first = next(way for way in ways if isinstance(way, QPushButton))
    assert first.text().startswith("Use gpu-")
    first.click()
    dialog.accept()
    desk.wait_until(lambda: "x" in desk.live())


def test_wrong_fields_are_told_beside_them_and_nothing_is_booked(desk: Desk) -> None:
    desk.open()
    desk.page.acts.book.trigger()
    dialog = dialog_of(desk)
    dialog.gpus.setText("gpu-x:0")
    dialog.start.setText("tomorrow 9")
    dialog.end.setText("tomorrow 8")
    dialog.accept()
    assert dialog.rows["gpus"].note.text().startswith("No host “gpu-x”")
    assert dialog.rows["end"].note.text().startswith("The booking ends at or before its start")
    assert dialog.rows["title"].note.text().startswith("The booking has no title")
    assert desk.live() == {}
    dialog.reject()


def test_several_gpus_are_edited_as_one(desk: Desk) -> None:
    booking = desk.book("a0 a1", 4, 2, "mine")
    desk.open()
    desk.wait_until(lambda: desk.shown("mine"))
    desk.page.surface.select(booking.id)
    desk.page.acts.edit.trigger()
    dialog = dialog_of(desk)
    assert dialog.gpus.text() == "gpu-a:0-1"
    dialog.gpus.setText("gpu-b:0-3")
    dialog.title.setText("theirs now")
    dialog.accept()
    desk.wait_until(lambda: desk.store.booking(booking.id).title == "theirs now")
    assert len(desk.store.booking(booking.id).gpus) == 4


def test_a_calendar_file_goes_out_and_comes_in_with_a_preview(desk: Desk, tmp_path: Path) -> None:
    booking = desk.book("a0", 4, 2, "mine")
    desk.open()
    desk.wait_until(lambda: desk.shown("mine"))
    file = tmp_path / "mine.ics"
    said: list[str] = []
    export_bookings(desk.model, desk.page, said.append, said.append, file)
    desk.wait_until(lambda: said)
    assert said == ["1 booking written to mine.ics"]
    desk.store.cancel(booking.id)
    desk.page.import_bookings(file)
    dialog = desk.page.dialog
    assert isinstance(dialog, ImportDialog)
    desk.wait_until(lambda: dialog.previewed)
    assert [one.verdict for one in dialog.previewed] == ["new"]
    assert "mine" not in desk.live()  # The preview must not change the store.
    dialog.accept()
    desk.wait_until(lambda: "mine" in desk.live())
    desk.wait_until(lambda: desk.page.dialog is None)


@pytest.mark.parametrize("text", ["", "BEGIN:VCALENDAR\nBEGIN:VEVENT\nEND:VCALENDAR", "\x00\x01"])
def test_a_file_that_is_no_calendar_is_refused_with_a_sentence(desk: Desk, tmp_path: Path, text: str) -> None:
    desk.open()
    file = tmp_path / "bad.ics"
    file.write_text(text)
    desk.page.import_bookings(file)
    dialog = desk.page.dialog
    assert isinstance(dialog, ImportDialog)
    desk.wait_until(lambda: "cannot be read" in dialog.summary.text())
    assert not dialog.ok.isEnabled()
    dialog.reject()


def test_a_clash_in_a_calendar_file_is_shown_before_anything_is_booked(desk: Desk, tmp_path: Path) -> None:
    theirs = desk.book("a0", 4, 2, "theirs", "lee")
    file = tmp_path / "theirs.ics"
    text = export_ics([theirs], desk.slots)
    file.write_text(text)
    desk.open()
    desk.page.import_bookings(file)
    dialog = desk.page.dialog
    assert isinstance(dialog, ImportDialog)
    desk.wait_until(lambda: dialog.previewed)
    assert dialog.previewed[0].verdict == "clash"
    cell = dialog.table.item(0, 3)
    assert cell is not None
    assert "booked by lee" in cell.text()
    assert not dialog.ok.isEnabled()
    dialog.reject()


def test_the_usage_report_counts_and_is_saved_as_csv(desk: Desk, tmp_path: Path) -> None:
    desk.book_long_ago("a0 a1", -20, 10, "mine")
    start = desk.now - timedelta(hours=20)
    desk.store.record_use([Use("GPU-a0", "gpu-a", "kim", start, start + timedelta(hours=10))])
    desk.open()
    desk.page.acts.usage.trigger()
    dialog = desk.page.dialog
    assert isinstance(dialog, UsageDialog)
    desk.wait_until(lambda: dialog.rows_)
    assert dialog.summary.text() == "20.0 GPU-hours booked, 10.0 used."
    assert dialog.bars.accessibleName() == "kim: 20.0 h booked, 10.0 h used, 10.0 h idle"
    dialog.by.set_value("host")
    desk.wait_until(lambda: dialog.rows_ and dialog.rows_[0].key == "gpu-a")
    dialog.save_csv(tmp_path / "hours.csv")
    assert (tmp_path / "hours.csv").read_bytes().splitlines()[1] == b"gpu-a,20.00,10.00,10.00,0.00"
    dialog.reject()


def test_an_admin_changes_the_rules_and_they_hold_at_once(desk: Desk) -> None:
    desk.open()
    desk.page.acts.rules.trigger()
    dialog = desk.page.dialog
    assert isinstance(dialog, RulesDialog)
    dialog.fields["longest_h"].setText("many")  # type: ignore[union-attr]  # The widget is a line edit.
    dialog.accept()
    row = dialog.rows["longest_h"]
    assert row.problem == "“many” is not a number. Leave it empty for no limit."
    dialog.fields["longest_h"].setText("-5")  # type: ignore[union-attr]  # The widget is a line edit.
    dialog.accept()
    assert row.problem == "Must be a number of 0 or more, not -5.0."
    dialog.fields["longest_h"].setText("1e20")  # type: ignore[union-attr]  # The widget is a line edit.
    dialog.accept()
    assert row.problem == "Must be less than 1000000, not 1e+20."
    dialog.fields["longest_h"].setText("3")  # type: ignore[union-attr]  # The widget is a line edit.
    dialog.accept()
    desk.wait_until(lambda: desk.model.seen.rules.longest_h == 3)
    assert desk.store.rules() == Rules(longest_h=3)
    desk.drag(desk.place("a0", 2), desk.place("a0", 9), drop=False)
    assert "at most 3 h long" in desk.page.surface.tip.text()
    desk.page.surface.cancel()


def test_each_invalid_rule_is_marked_and_the_first_has_the_focus(desk: Desk) -> None:
    desk.open()
    desk.page.acts.rules.trigger()
    dialog = desk.page.dialog
    assert isinstance(dialog, RulesDialog)
    dialog.fields["longest_h"].setText("many")  # type: ignore[union-attr]  # The widget is a line edit.
    dialog.fields["zone"].setText("Europe/Berlyn")  # type: ignore[union-attr]  # The widget is a line edit.
    dialog.fields["windows"].setPlainText("*:* | nobody | daily | 09:00-18:00 | UTC")  # type: ignore[union-attr]  # The field is a multi-line editor.
    dialog.accept()
    assert [name for name, row in dialog.rows.items() if row.problem] == ["longest_h", "zone", "windows"]
    assert dialog.fields["longest_h"].property("invalid")
    assert dialog.focusWidget() is dialog.fields["longest_h"]
    assert dialog.problem.isHidden()
    dialog.fields["longest_h"].setText("3")  # type: ignore[union-attr]  # The widget is a line edit.
    assert dialog.rows["longest_h"].problem == ""
    dialog.accept()
    assert dialog.focusWidget() is dialog.fields["zone"]
    assert dialog.isVisible()


def test_the_dialog_has_room_for_all_its_problems(desk: Desk) -> None:
    desk.open()
    desk.page.acts.book.trigger()
    dialog = dialog_of(desk)
    for field in (dialog.title, dialog.gpus, dialog.start, dialog.end):
        field.clear()
    dialog.accept()
    wrong = [row for row in dialog.rows.values() if row.problem]
    assert len(wrong) == 4
    assert dialog.rows["start"].problem.startswith("A time is missing. Write ")
    desk.wait_until(lambda: all(row.note.height() >= row.note.heightForWidth(row.note.width()) for row in wrong))

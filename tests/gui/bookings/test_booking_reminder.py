"""Tests of reminders before the user's own booking ends, which offer *Extend* if no other booking follows."""

from __future__ import annotations

from datetime import timedelta

import pytest
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QVBoxLayout, QWidget

from tests.gui.bookings.conftest import Desk
from torchyard_core.booking.model import Use
from torchyard_core.booking.rules.team_rules import Rules
from torchyard_gui.bookings.booking_reminder import BookingReminder, reminders

MINUTE = timedelta(minutes=1)
LEFT = Qt.MouseButton.LeftButton


class Reminded:
    """The reminder above the calendar. `shown` and `said` record the calls that it makes."""

    def __init__(self, desk: Desk):
        self.with_run: set[str] = set()
        self.shown: list[str] = []
        self.said: list[str] = []
        self.around = QWidget()
        desk.qtbot.addWidget(self.around)
        self.reminder = BookingReminder(
            desk.model, lambda: self.with_run, self.shown.append, self.said.append, self.around
        )
        self.bar = self.reminder.bar
        QVBoxLayout(self.around).addWidget(self.bar)
        self.around.show()

    @property
    def text(self) -> str:
        return self.bar.text if self.bar.isVisible() else ""

    def buttons(self) -> list[str]:
        return [button.text() for button in self.bar.buttons]


@pytest.fixture
def open_desk(desk: Desk) -> Desk:
    desk.open()
    return desk


def test_of_ones_own_live_bookings_with_a_run_or_in_use_in_their_last_quarter_of_an_hour(desk: Desk) -> None:
    with_run = desk.book_long_ago("a0", -4, 4.2, "with a run")
    used = desk.book_long_ago("a1 a2", -4, 4.25, "in use")
    desk.book_long_ago("a3", -4, 4.1, "idle")
    desk.book_long_ago("b0", -4, 4.5, "ends later")
    desk.book_long_ago("b1", -4, 4.1, "theirs", "lee")
    desk.book("a0", 0.75, 2, "follows soon", "lee")
    desk.book("a2", 2, 2, "follows late", "lee")
    seen = desk.store.bookings(desk.now - timedelta(days=1), desk.now + timedelta(days=1))
    found = reminders(seen, "kim", desk.now, {"GPU-a2", "GPU-b1"}, {with_run.id})
    assert [one.booking for one in found] == [with_run, used]
    # Another booking begins 33 min after the first booking ends, so the first booking can be extended by half an hour.
    # No booking begins within an hour after the second booking ends.
    assert [(one.follower and one.follower.title, one.longer) for one in found] == [
        ("follows soon", 30 * MINUTE),
        (None, 60 * MINUTE),
    ]
    assert reminders(seen, "kim", desk.now - 2 * MINUTE, {"GPU-a2"}, {with_run.id}) == found[:1]


def test_it_says_so_once_extends_and_goes(open_desk: Desk) -> None:
    desk = open_desk
    booking = desk.book_long_ago("a0 a1", -4, 4.2, "digits")
    reminded = Reminded(desk)
    reminded.with_run = {booking.id}
    desk.model.reload()
    desk.wait_until(lambda: reminded.text)
    assert reminded.text == (
        "Your booking “digits” of gpu-a:0-1 ends at 09:12, in 12 min. No booking follows, so the run continues."
    )
    assert reminded.buttons() == ["Extend by 1 h", "Show booking"]

    # The text changes every minute, but the buttons and the keyboard focus stay.
    extend = reminded.bar.buttons[0]
    desk.now += 3 * MINUTE
    reminded.reminder.refresh()
    assert "in 9 min" in reminded.text
    assert reminded.bar.buttons[0] is extend
    QTest.mouseClick(reminded.bar.buttons[1], LEFT)
    assert reminded.shown == [booking.id]

    QTest.mouseClick(extend, LEFT)
    desk.wait_until(lambda: desk.store.booking(booking.id).end == booking.end + timedelta(hours=1))
    desk.wait_until(lambda: not reminded.bar.isVisible())
    assert reminded.said == ["“digits” is yours until 10:12."]

    # A second reminder appears before the new end, and is shown until the user closes it.
    desk.now = booking.end + 50 * MINUTE
    desk.model.reload()
    desk.wait_until(lambda: reminded.text)
    QTest.mouseClick(reminded.bar._close, LEFT)
    reminded.reminder.refresh()
    assert reminded.text == ""


def test_one_that_is_let_go_needs_no_reminder_and_a_refusal_is_told_in_it(open_desk: Desk) -> None:
    desk = open_desk
    desk.store.set_rules(Rules(longest_h=4.5))
    first = desk.book_long_ago("a0", -4, 4.1, "first")
    second = desk.book_long_ago("a1", -4, 4.2, "second")
    desk.store.record_use([Use(gpu, "gpu-a", "kim", desk.now - 9 * MINUTE, desk.now) for gpu in ("GPU-a0", "GPU-a1")])
    reminded = Reminded(desk)
    desk.model.reload()
    desk.wait_until(lambda: "“first”" in reminded.text)
    QTest.mouseClick(reminded.bar.buttons[0], LEFT)
    desk.wait_until(lambda: "at most 4.5 h" in reminded.text)
    desk.store.release(first.id)
    desk.model.reload()
    desk.wait_until(lambda: "“second”" in reminded.text)
    assert "4.5" not in reminded.text
    desk.store.cancel(second.id)
    desk.model.reload()
    desk.wait_until(lambda: not reminded.bar.isVisible())


def test_if_a_booking_follows_at_once_its_owner_is_named_and_no_more_time_is_offered(open_desk: Desk) -> None:
    desk = open_desk
    booking = desk.book_long_ago("a0", -4, 4.2, "digits")
    desk.book("a0", 0.2, 2, "theirs", "lee")
    reminded = Reminded(desk)
    reminded.with_run = {booking.id}
    desk.model.reload()
    desk.wait_until(lambda: reminded.text)
    assert reminded.text.endswith(
        "The next booking is lee's, from 09:12. A run that is still active then saves and is stopped."
    )
    assert reminded.buttons() == ["Show booking"]

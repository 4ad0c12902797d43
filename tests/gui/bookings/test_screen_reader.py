"""Tests that screen readers announce changes of bookings and whether the calendar is available."""

from __future__ import annotations

from datetime import timedelta

import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QAccessible, QAccessibleAnnouncementEvent
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QWidget
from pytestqt.qtbot import QtBot

from tests.gui.bookings.conftest import Desk
from torchyard_gui.bookings.dialogs.booking_dialog import BookingDialog
from torchyard_gui.widgets import screen_reader
from torchyard_gui.widgets.screen_reader import Announcer

Politeness = QAccessible.AnnouncementPoliteness


class Listener:
    """Receives Qt's accessibility events in place of the system's screen reader."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, bool]] = []

    def __call__(self, event: QAccessibleAnnouncementEvent) -> None:
        assert event.type() == QAccessible.Event.Announcement
        self.heard.append((event.message(), event.politeness() == Politeness.Assertive))

    def has(self, words: str, *, urgent: bool = False) -> bool:
        return any(words in text and urgent == loud for text, loud in self.heard)


@pytest.fixture
def listener(monkeypatch: pytest.MonkeyPatch) -> Listener:
    made = Listener()
    monkeypatch.setattr(screen_reader, "send", made)
    return made


def test_what_is_booked_moved_undone_and_refused_is_told(
    desk: Desk, listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(screen_reader, "EVERY_MS", 0)
    desk.book("a2", 3, 2, "theirs", "lee")
    desk.open()
    desk.wait_until(lambda: desk.shown("theirs"))
    desk.drag(desk.place("b0", 2), desk.place("b1", 5))
    dialog = desk.page.dialog
    assert isinstance(dialog, BookingDialog)
    QTest.keyClicks(dialog.title, "mine")
    QTest.keyClick(dialog.title, Qt.Key.Key_Return)
    desk.wait_until(lambda: listener.has("Booked: gpu-b:0-1, today 11:00"))
    desk.wait_until(lambda: desk.shown("mine"))

    desk.drag(desk.place("b0", 3), desk.place("b2", 7))
    desk.wait_until(lambda: listener.has("Changed: gpu-b:2-3, today 15:00"))
    desk.wait_until(desk.page.acts.undo.isEnabled)
    desk.page.acts.undo.trigger()
    desk.wait_until(lambda: listener.has("Undone: change “mine”"))

    desk.drag(desk.place("a1", 2), desk.place("a3", 8))
    assert listener.has("booked by lee", urgent=True)
    # Changes are announced even while a dialog is open above the page.
    desk.page.acts.book.trigger()
    dialog = desk.page.dialog
    assert isinstance(dialog, BookingDialog)
    for field, text in ((dialog.title, "x"), (dialog.gpus, "gpu-a:2"), (dialog.start, "12:00"), (dialog.end, "+1h")):
        field.setText(text)
    listener.heard.clear()
    dialog.accept()
    desk.wait_until(lambda: listener.has("booked by lee", urgent=True))
    dialog.reject()


def test_a_calendar_that_goes_and_comes_back_is_told_once_each(
    desk: Desk, listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(screen_reader, "EVERY_MS", 0)
    desk.book("a0", 1, 5, "mine")
    desk.open()
    desk.wait_until(lambda: desk.shown("mine"))
    desk.is_away = True
    desk.calendar.close()
    for _ in range(2):
        desk.now += timedelta(minutes=5)
        desk.model.reload()
        desk.wait_until(lambda: not desk.model.seen.is_live and desk.model._loading.is_finished)  # type: ignore[union-attr]  # The value is not None in this test.
    assert [loud for text, loud in listener.heard if "The calendar is unreachable" in text] == [True]
    desk.is_away = False
    desk.calendar._away = None  # Ends the retry delay, which the stopped test clock would never end.
    desk.model.reload()
    desk.wait_until(lambda: listener.has("The calendar is back."))


def test_who_listens_is_told_one_sentence_every_few_seconds_and_then_the_newest(
    qtbot: QtBot, listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(screen_reader, "EVERY_MS", 60_000)
    widget = QWidget()
    qtbot.addWidget(widget)
    widget.show()
    announcer = Announcer(widget)

    def time_passes() -> None:
        assert announcer._timer.isActive()
        announcer._timer.start(0)

    announcer.say("one")
    for text in ("two", "three", "four"):
        announcer.say(text)
    assert [text for text, _ in listener.heard] == ["one"]
    time_passes()
    qtbot.waitUntil(lambda: len(listener.heard) > 1)
    announcer.say("refused", urgent=True)
    announcer.say("by the way")
    time_passes()
    qtbot.waitUntil(lambda: len(listener.heard) > 2)
    assert listener.heard == [("one", False), ("four", False), ("refused", True)]

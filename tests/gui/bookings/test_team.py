"""Tests of the Bookings page of a member who is not an admin, with PostgreSQL: booking, refusals, and offline state."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import cast

import pytest
from PySide6.QtCore import QPoint, Qt
from PySide6.QtTest import QTest
from pytestqt.qtbot import QtBot

from tests.core.booking.cluster import Cluster
from tests.core.booking.conftest import postgres  # noqa: F401  # pytest finds the fixture by this import.
from tests.core.booking.teams import open_at
from tests.gui.bookings.conftest import LEFT, Desk
from torchyard_core.booking.model import Draft
from torchyard_core.booking.store import BookingStore
from torchyard_gui.bookings.dialogs.booking_dialog import BookingDialog
from torchyard_gui.bookings.dialogs.rules_dialog import RulesDialog

Key = Qt.Key


class TeamDesk(Desk):
    """A `Desk` of the user `kim`, with a team's calendar in PostgreSQL."""

    server: Cluster

    def __post_init__(self) -> None:
        self.url = self.server.url(self.person, "team")
        self.store = self.reach(self.url, self.person)

    def reach(self, url: str, person: str) -> BookingStore:
        """Opens the calendar with the test's clock, because the database would otherwise use its own."""
        return open_at(url, person, self.clock)


@pytest.fixture
def team_desk(qtbot: QtBot, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[TeamDesk]:
    """Returns a `TeamDesk` whose page is not open yet."""
    server = cast("Cluster", request.getfixturevalue("postgres"))
    server.empty()
    TeamDesk.server = server
    desk = TeamDesk(qtbot, tmp_path)
    desk.store.remember_slots(desk.slots)
    yield desk
    desk.close()


def test_a_member_books_and_cannot_change_what_is_anothers_nor_the_rules(team_desk: TeamDesk) -> None:
    desk = team_desk
    lee = desk.reach(desk.server.url("lee", "team"), "lee")
    start = desk.now + timedelta(hours=3)
    try:
        theirs = lee.book(Draft("theirs", ("GPU-a2",), start, start + timedelta(hours=4), "Europe/Berlin"))
    finally:
        lee.close()
    desk.open()
    desk.wait_until(lambda: desk.shown("theirs"))
    page = desk.page
    assert page.legend.place.text() == "PostgreSQL · up to date"
    assert not page.legend.share.isVisible()

    desk.drag(desk.place("b0", 2), desk.place("b1", 5))
    dialog = page.dialog
    assert isinstance(dialog, BookingDialog)
    QTest.keyClicks(dialog.title, "mine")
    QTest.keyClick(dialog.title, Key.Key_Return)
    desk.wait_until(lambda: desk.shown("mine"))
    assert desk.live()["mine"].owner == "kim"

    # Kim cannot drag Lee's booking: the tip gives the reason. The drawer has no buttons that change the booking.
    desk.drag(desk.place("a2", 5), desk.place("a3", 9), drop=False)
    assert "is lee's booking: only lee or an admin can change it" in page.surface.tip.text()
    QTest.mouseRelease(page.surface.viewport(), LEFT, pos=desk.place("a3", 9))
    assert "only lee or an admin" in page.notice.text
    assert desk.store.booking(theirs.id) == theirs
    QTest.mouseClick(page.surface.viewport(), LEFT, pos=desk.place("a2", 5))
    assert page.details.isVisible()
    assert not any(button.isVisible() for button in page.details.buttons)
    assert not page.acts.edit.isEnabled()
    assert not page.acts.release.isEnabled()

    assert page.acts.rules.text() == "Show the rules"
    page.acts.rules.trigger()
    rules = page.dialog
    assert isinstance(rules, RulesDialog)
    assert not rules.ok.isVisible()
    assert all(field.isReadOnly() for field in rules.fields.values())
    rules.reject()


def test_a_calendar_that_is_hidden_has_no_connection_and_one_that_is_shown_hears_of_changes(
    team_desk: TeamDesk,
) -> None:
    desk = team_desk
    desk.store.close()
    desk.store = desk.reach(desk.server.url("lee", "team"), "lee")

    def connections() -> int:
        with desk.server.connect("owner", "team") as owner:
            found = owner.execute("SELECT count(*) FROM pg_stat_activity WHERE usename = 'kim'").fetchone()
        assert found is not None
        return int(found[0])

    desk.open()
    desk.wait_until(lambda: desk.model.seen.is_live and connections() == 1)
    desk.page.hide()
    desk.wait_until(lambda: connections() == 0)
    desk.model._unwatched.setInterval(100)  # In production, the interval is one minute.
    desk.book("a1", 1, 5, "meanwhile", "lee")
    desk.wait_until(lambda: "meanwhile" in {one.title for one in desk.model.seen.bookings})
    desk.model._unwatched.setInterval(60_000)
    desk.wait_until(lambda: connections() == 0)
    desk.page.show()
    desk.wait_until(lambda: desk.model._watch is not None and desk.model._watch.is_watching.is_set())
    desk.book("a0", 1, 5, "lees", "lee")
    desk.wait_until(lambda: desk.shown("lees"))
    assert connections() == 1


def test_the_database_goes_and_comes_back_while_the_window_is_open(team_desk: TeamDesk) -> None:
    desk = team_desk
    desk.book("a0", 1, 5, "mine")
    desk.open()
    desk.wait_until(lambda: desk.shown("mine"))
    page = desk.page
    desk.model._retry.setInterval(300)
    desk.server.stop()
    try:
        desk.now += timedelta(minutes=40)
        desk.model.reload()
        desk.wait_until(lambda: not desk.model.seen.is_live)
        assert desk.shown("mine")
        assert "Shown as of 09:00, 40 min ago" in page.notice.text
        assert not page.acts.book.isEnabled()
        desk.drag(desk.place("b0", 4), desk.place("b1", 9), drop=False)
        assert "unreachable" in page.surface.tip.text()
        desk.key(Key.Key_Escape)
        QTest.mouseRelease(page.surface.viewport(), LEFT, pos=QPoint(1, 1))
    finally:
        desk.server.start()

    def is_back() -> bool:
        # Ends the retry delay, which the stopped test clock would never end. This is repeated, because an attempt that
        # is already in progress may still fail.
        desk.calendar._away = None
        return desk.model.seen.is_live

    desk.wait_until(is_back)
    assert page.notice.isHidden()
    assert page.acts.book.isEnabled()
    # The window again shows changes that are made over other connections.
    desk.book("b3", 1, 2, "after it")
    desk.wait_until(lambda: desk.shown("after it"))

"""Tests that the window loads only what has changed in its calendar, and keeps a copy in case the database is
unreachable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from PySide6.QtCore import QPoint
from pytestqt.qtbot import QtBot

from tests.gui.bookings.conftest import ZONE, Desk
from torchyard_core.booking.model import Draft, Use
from torchyard_core.booking.store import BookingStore
from torchyard_core.booking.store.database_engine import transaction
from torchyard_core.booking.sync.local_copy import LocalCopy
from torchyard_gui.bookings.calendar.background_painting import unbooked_boxes
from torchyard_gui.bridge.bookings_model import BookingsModel

DAY = timedelta(days=1)


@dataclass
class Counted(Desk):
    """A `Desk` that counts how often the window queries the store."""

    asked: list[str] = field(default_factory=list)

    def reach(self, url: str, person: str) -> BookingStore:
        store = super().reach(url, person)
        for name in ("bookings", "changes", "uses"):
            setattr(store, name, self._counting(name, getattr(store, name)))
        return store

    def _counting(self, name: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **more: Any) -> Any:
            self.asked.append(name)
            return work(*args, **more)

        return counted

    def titles(self) -> set[str]:
        return {one.title for one in self.model.seen.bookings}

    def settle(self) -> None:
        """Waits until the window watches the calendar and makes no more queries."""
        self.wait_until(lambda: self.model._watch is not None and self.model._watch.is_watching.is_set())
        self.wait_until(lambda: self.model._copied)
        before = -1
        while before != len(self.asked):
            before = len(self.asked)
            self.qtbot.wait(500)


@pytest.fixture
def counted(qtbot: QtBot, tmp_path: Path) -> Iterator[Counted]:
    desk = Counted(qtbot, tmp_path)
    yield desk
    desk.close()


def test_use_that_was_seen_before_the_calendar_was_opened_counts(desk: Desk) -> None:
    desk.open()
    desk.observe("gpu-a", {0: "kim"})
    later = BookingsModel(desk.model.home, desk.fleet, opener=desk._opener, clock=desk.clock)
    assert set(later.in_use) == {"GPU-a0"}
    later.close()


def test_use_without_a_booking_is_marked_at_once_and_names_its_user(desk: Desk) -> None:
    desk.book("a1", 0, 4, "booked")
    desk.open()
    desk.wait_until(lambda: desk.shown("booked"))
    surface = desk.page.surface
    desk.observe("gpu-a", {0: "kim", 1: "kim"})
    assert set(surface.picture.used_now) == {"GPU-a0"}, "the other one is booked"
    (box,) = unbooked_boxes(surface.picture, surface.axis, "GPU-a0")
    assert box.width() >= 12
    assert abs(box.right() - surface.axis.x_of(desk.now.timestamp())) < 2
    over = desk.place("a0", 0) - QPoint(4, 0)
    assert surface.tooltip_at(over) == "gpu-a:0 is in use without a booking: kim, since 09:00 or earlier"
    assert surface.tooltip_at(desk.place("a0", 2)) == ""
    desk.observe("gpu-a", {1: "kim"})
    assert not surface.picture.used_now
    assert unbooked_boxes(surface.picture, surface.axis, "GPU-a0") == []


def test_changes_by_others_are_read_and_neither_the_other_bookings_nor_the_records_of_use(counted: Counted) -> None:
    desk = counted
    first, second = desk.book("a0", 1, 2, "first"), desk.book("a1", 1, 2, "second")
    desk.open()
    desk.wait_until(lambda: desk.titles() == {"first", "second"})
    desk.settle()
    desk.asked.clear()
    desk.book("b0", 1, 2, "third")
    desk.store.change(first.id, title="renamed")
    desk.store.cancel(second.id)
    with transaction(desk.store.session.engine, writes=True) as connection:
        connection.exec_driver_sql("DELETE FROM bookings WHERE title = 'second'")
    desk.wait_until(lambda: desk.titles() == {"renamed", "third"})
    assert set(desk.asked) == {"changes"}


def test_records_of_use_are_read_within_a_minute_and_at_once_when_asked_for(counted: Counted) -> None:
    desk = counted
    desk.open()
    desk.settle()
    model = desk.model
    model._uses_due.stop()  # It is running, because starting to watch the calendar counts as a change.
    model._uses_due.setInterval(1500)

    def used() -> set[str]:
        return {use.gpu for use in model.seen.uses}

    begin = desk.now - timedelta(hours=1)
    desk.store.record_use([Use("GPU-a0", "gpu-a", "kim", begin, desk.now)])
    desk.wait_until(model._uses_due.isActive)
    desk.wait_until(lambda: used() == {"GPU-a0"})
    assert not model._uses_due.isActive()

    model._uses_due.setInterval(600_000)
    desk.store.record_use([Use("GPU-a1", "gpu-a", "kim", begin, desk.now)])
    model.reload()
    desk.wait_until(lambda: used() == {"GPU-a0", "GPU-a1"})

    before = model.seen
    model.reload()
    desk.wait_until(lambda: model.seen is not before)
    assert model.seen.uses is before.uses, "what is the same is drawn again"


def test_an_open_window_copies_all_of_the_coming_sixty_days(counted: Counted) -> None:
    desk = counted
    start = desk.now + timedelta(hours=1)
    drafts = [
        Draft(
            f"n{number}",
            ("GPU-a0",),
            start + number * timedelta(hours=1),
            start + (number + 0.5) * timedelta(hours=1),
            ZONE,
        )
        for number in range(1300)
    ]
    with transaction(desk.store.session.engine, writes=True) as connection:
        desk.store.writer.insert(connection, drafts, desk.now, None)
    desk.open()
    desk.wait_until(lambda: desk.model._copied)
    copy = LocalCopy(desk.folder / "seen.json", desk.url)

    def copied() -> int:
        kept = copy.read(desk.now, desk.now + 60 * DAY)
        return len(kept.bookings) if kept is not None else 0

    desk.wait_until(lambda: copied() == 1300)

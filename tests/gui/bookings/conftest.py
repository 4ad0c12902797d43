"""Fixtures of the Bookings page with an SQLite store and a clock that the tests set."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from PySide6.QtCore import QPoint, Qt
from PySide6.QtTest import QTest
from pytestqt.qtbot import QtBot

from tests.gui.theme_fixture import without_theme
from torchyard_core.booking.errors import StoreUnavailable
from torchyard_core.booking.model import Booking, Draft, Slot
from torchyard_core.booking.store import BookingStore, open_store
from torchyard_core.booking.sync.cached_calendar import Calendar
from torchyard_core.fleet.host_check import READY, HostCheck
from torchyard_core.fleet.inventory import Host
from torchyard_core.home import Home
from torchyard_gui.bookings.dialogs.booking_dialog import BookingDialog
from torchyard_gui.bookings.page import BookingsPage
from torchyard_gui.bridge.bookings_model import BookingsModel
from torchyard_gui.bridge.fleet_model import FleetModel
from torchyard_gui.theme.tokens import METRICS as M

ZONE = "Europe/Berlin"
NOW = datetime(2031, 1, 8, 8, 0, tzinfo=UTC)
"""A Wednesday at 09:00 in Berlin."""
SLOTS = (
    *(Slot(f"GPU-a{number}", "gpu-a", number, "NVIDIA A100-SXM4-40GB", 40960) for number in range(4)),
    *(Slot(f"GPU-b{number}", "gpu-b", number, "NVIDIA H100 80GB HBM3", 81559) for number in range(4)),
)
LEFT = Qt.MouseButton.LeftButton


@dataclass
class Desk:
    """The Bookings page with its store, and methods that simulate a user's input."""

    qtbot: QtBot
    folder: Path
    now: datetime = NOW
    person: str = "kim"
    is_away: bool = False
    slots: tuple[Slot, ...] = SLOTS
    page: BookingsPage = field(init=False)
    model: BookingsModel = field(init=False)
    store: BookingStore = field(init=False)

    def __post_init__(self) -> None:
        self.url = f"sqlite:///{self.folder / 'bookings.sqlite3'}"
        self.store = self.reach(self.url, self.person)
        self.store.remember_slots(self.slots)

    def reach(self, url: str, person: str) -> BookingStore:
        """Opens the calendar with the test's clock."""
        return open_store(url, person, clock=self.clock)

    def clock(self) -> datetime:
        return self.now

    def open(self) -> None:
        """Opens the page, and waits until it shows the contents of the store."""
        home = Home(self.folder / "home")
        self.fleet = FleetModel(home, self.folder / "fleet.yaml")
        self.model = BookingsModel(home, self.fleet, opener=self._opener, clock=self.clock)
        with without_theme():
            self.page = BookingsPage(self.model)
        self.page.resize(1168, 700)
        self.qtbot.addWidget(self.page)
        self.page.show()
        self.page.activateWindow()
        self.qtbot.waitUntil(self.page.isActiveWindow)
        self.qtbot.waitUntil(lambda: self.model.has_loaded)
        self.page.surface.setFocus()

    def _opener(self) -> tuple[Calendar, str]:
        def reach(url: str, person: str) -> BookingStore:
            if self.is_away:
                raise StoreUnavailable("the bookings database does not answer")
            return self.reach(url, person)

        calendar = Calendar(self.url, self.person, self.folder / "seen.json", open_it=reach, monotonic=lambda: 0.0)
        self.calendar = calendar
        return calendar, ZONE

    def close(self) -> None:
        if hasattr(self, "page"):
            self.page.close_page()
            self.page.hide()
            self.model.close()
            self.fleet.close()
        self.store.close()

    # Access to the calendar

    def book(
        self, gpus: str, starts_in_h: float, hours: float, title: str = "digits", owner: str | None = None
    ) -> Booking:
        ids = tuple(f"GPU-{word}" for word in gpus.split())
        start = self.now + timedelta(hours=starts_in_h)
        return self.store.book(Draft(title, ids, start, start + timedelta(hours=hours), ZONE, owner=owner))

    def book_long_ago(
        self, gpus: str, starts_in_h: float, hours: float, title: str, owner: str | None = None
    ) -> Booking:
        """Makes a booking that begins in the past: the clock is set back while the booking is made."""
        now, self.now = self.now, self.now + timedelta(hours=starts_in_h)
        try:
            return self.book(gpus, 0, hours, title, owner)
        finally:
            self.now = now

    def live(self) -> dict[str, Booking]:
        """Returns the active and future bookings from 9 days ago to 60 days ahead, by title."""
        found = self.store.bookings(self.now - timedelta(days=9), self.now + timedelta(days=60))
        return {one.title: one for one in found if one.is_live}

    def observe(self, host: str, users: dict[int, str]) -> None:
        """Makes a host's telemetry report the given users of its GPUs, by GPU index."""
        if self.fleet.status(host) is None:
            self.fleet.add(Host(name=host))
            self.fleet._statuses[host] = self.fleet._statuses[host].checked(HostCheck(host, READY), datetime.now(UTC))
        gpus = [
            {
                "index": slot.index,
                "uuid": slot.id,
                "name": slot.model,
                "memory_mb": slot.memory_mb,
                "memory_used_mb": 900.0,
                "utilisation": 0.0,
                "problem": None,
                "processes": [{"pid": 7, "user": users[slot.index], "program": "python", "replica": None}]
                if slot.index in users
                else [],
            }
            for slot in self.slots
            if slot.host == host
        ]
        self.fleet._sampled(host, {"gpus": gpus, "replicas": {}})
        self.fleet._sampled_at[host] = float("inf")  # An infinite sample time keeps the sample from expiring.

    def wait_until(self, condition: Callable[[], object]) -> None:
        self.qtbot.waitUntil(lambda: bool(condition()), timeout=30_000)

    def shown(self, title: str) -> bool:
        return any(block.booking.title == title for block in self.page.surface.picture.blocks)

    def hours(self, moment: datetime) -> float:
        """Returns the time from now to `moment` in hours."""
        return (moment - self.now) / timedelta(hours=1)

    # Simulated input

    def place(self, gpu: str, hours: float) -> QPoint:
        """Returns the position in the lane of a GPU at the time `hours` from now."""
        surface = self.page.surface
        row = surface.picture.lanes.lane_of[f"GPU-{gpu}"]
        x = surface.axis.x_of((self.now + timedelta(hours=hours)).timestamp())
        y = row.top + row.height // 2 - surface.verticalScrollBar().value()
        return QPoint(round(x) + M.lane_header, y + M.days_header)

    def drag(self, begin: QPoint, end: QPoint, *, drop: bool = True) -> None:
        viewport = self.page.surface.viewport()
        QTest.mousePress(viewport, LEFT, pos=begin)
        for step in range(1, 6):
            QTest.mouseMove(viewport, begin + (end - begin) * step / 5)
        if drop:
            QTest.mouseRelease(viewport, LEFT, pos=end)

    def key(self, key: Qt.Key, held: Qt.KeyboardModifier = Qt.KeyboardModifier.NoModifier) -> None:
        QTest.keyClick(self.page.surface, key, held)

    def accept(self, title: str = "") -> None:
        """Types `title`, if given, into the booking dialog, and confirms the dialog with Enter."""
        dialog = self.page.dialog
        assert isinstance(dialog, BookingDialog)
        if title:
            QTest.keyClicks(dialog.title, title)
        QTest.keyClick(dialog.title, Qt.Key.Key_Return)
        self.wait_until(lambda: self.page.dialog is None)


@pytest.fixture
def desk(qtbot: QtBot, tmp_path: Path) -> Iterator[Desk]:
    """Returns a `Desk` whose page is not open yet, so that a test can first add bookings to its store."""
    made = Desk(qtbot, tmp_path)
    yield made
    made.close()

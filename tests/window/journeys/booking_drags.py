"""Drags bookings that are not selected. The bookings keep their length; a button in the toast undoes each change."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from PySide6.QtCore import QPoint

from tests.window.user import User
from torchyard_core.booking.model import Booking, Draft, Slot
from torchyard_core.booking.store import open_store
from torchyard_core.home import Home
from torchyard_core.identity import login_name
from torchyard_gui.bookings.calendar.block_painting import rect_of
from torchyard_gui.theme.tokens import METRICS as M

SLOTS = [Slot(f"GPU-a{number}", "gpu-a", number, "NVIDIA A100-SXM4-40GB", 40960) for number in range(8)]
TITLES = ("first", "second", "third")
LANES_DOWN = 3


def prepare(home: Path) -> None:
    """Books three GPUs separately, each for 8 hours tomorrow."""
    begin = datetime.now(UTC).replace(hour=6, minute=0, second=0, microsecond=0) + timedelta(days=1)
    store = open_store(f"sqlite:///{Home(home).bookings_file}", login_name())
    store.remember_slots(SLOTS)
    for number, title in enumerate(TITLES):
        store.book(Draft(title, (f"GPU-a{number}",), begin, begin + timedelta(hours=8), "UTC"))
    store.close()


def journey(user: User) -> None:
    page = user.show_page("bookings")
    user.expect(lambda: len(page.surface.picture.blocks) == len(TITLES), "the bookings are shown")
    # In this order, the lanes below each booking are free when the booking is dragged.
    for title in reversed(TITLES):
        drag_and_undo(user, page, title)
    user.click(middle(user, page, "first"))
    user.expect(lambda: page.drawers.current is page.details, "a click opens the details")
    drag_and_undo(user, page, "first")
    user.key("Escape")


def booking(user: User, page: Any, title: str) -> Booking:
    found: Sequence[Booking] = user.gui(lambda: [one for one in page.model.seen.bookings if one.title == title])
    return found[0]


def middle(user: User, page: Any, title: str) -> QPoint:
    def find() -> QPoint:
        surface = page.surface
        block = next(one for one in surface.picture.blocks if one.booking.title == title)
        rect = rect_of(block, surface.axis)
        inside = rect.center().toPoint() + QPoint(M.lane_header, M.days_header - surface.verticalScrollBar().value())
        return surface.viewport().mapToGlobal(inside)

    return user.gui(find)


def drag_and_undo(user: User, page: Any, title: str) -> None:
    before = booking(user, page, title)
    start = middle(user, page, title)
    user.drag(start, start + QPoint(0, LANES_DOWN * M.lane))
    moved = (f"GPU-a{int(before.gpus[0][-1]) + LANES_DOWN}",)
    user.expect(lambda: page.toast.isVisible() and booking_now(page, title) != before, "the change is reported")
    after = booking(user, page, title)
    assert (after.gpus, after.start, after.end) == (moved, before.start, before.end), (before, after)
    user.picture(f"dragged-{title}")
    user.click(user.button("Undo", page.toast))
    user.expect(lambda: booking_now(page, title).gpus == before.gpus, "the change is taken back")
    again = booking(user, page, title)
    assert (again.start, again.end) == (before.start, before.end)


def booking_now(page: Any, title: str) -> Booking:
    return next(one for one in page.model.seen.bookings if one.title == title)

"""Tests that changing a booking repaints only the booking's rows, and that nothing else looks different."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from PySide6.QtCore import QEvent, QObject, QPoint
from PySide6.QtGui import QRegion
from pytestqt.qtbot import QtBot

from tests.gui.bookings.calendar.test_display_list import HOUR, MONDAY, SLOTS, booking
from torchyard_core.booking.model import IdleEvidence, State, Use
from torchyard_gui.bookings.calendar.calendar_view import CalendarView
from torchyard_gui.bookings.calendar.display_list import DisplayListBuilder
from torchyard_gui.bookings.filters import Filter
from torchyard_gui.bridge.bookings_model import CalendarState

NOW = MONDAY + 12 * HOUR
FIRST = booking("a0 a1", 2, 30, id="first", title="first")
SECOND = booking("a3", 40, 60, id="second", title="second", owner="lee")
THIRD = booking("b1 b2", 1, 11, id="third", title="third")
SEEN = CalendarState(
    (FIRST, SECOND, THIRD), SLOTS, zone="UTC", person="kim", uses=(Use("b1", "b", "kim", THIRD.start, NOW - HOUR),)
)


def one(number: int, **changes: Any) -> Callable[[CalendarState], CalendarState]:
    def change(seen: CalendarState) -> CalendarState:
        bookings = list(seen.bookings)
        bookings[number] = replace(bookings[number], **changes)
        return replace(seen, bookings=tuple(bookings))

    return change


class Painted(QObject):
    """Records the painted regions of a widget."""

    def __init__(self) -> None:
        super().__init__()
        self.region = QRegion()

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if event.type() == QEvent.Type.Paint:
            self.region += event.region()  # type: ignore[attr-defined]  # The event is a paint event.
        return False


@pytest.mark.parametrize(
    ("change", "is_part"),
    [
        (one(0, title="another title"), True),
        (one(0, end=MONDAY + 50 * HOUR), True),
        (one(1, gpus=("b0",)), True),
        (one(1, state=State.CANCELLED), True),
        (one(2, owner="lee"), True),
        (lambda seen: replace(seen, bookings=seen.bookings[:2]), True),
        (lambda seen: replace(seen, bookings=(*seen.bookings, booking("a2", 5, 9, id="new"))), True),
        (lambda seen: seen, True),
        (lambda seen: replace(seen, idle=(IdleEvidence("first", MONDAY + 2 * HOUR, NOW, "kim"),)), False),
        (lambda seen: replace(seen, uses=(*seen.uses, Use("a2", "a", "lee", MONDAY, NOW))), False),
        (lambda seen: replace(seen, person="lee"), False),
        (lambda seen: replace(seen, slots=SLOTS[:6]), False),
    ],
)
@pytest.mark.parametrize("folded", [frozenset(), frozenset({"b"})], ids=["unfolded", "folded"])
def test_what_looks_different_is_painted(
    qtbot: QtBot, change: Callable[[CalendarState], CalendarState], is_part: bool, folded: frozenset[str]
) -> None:
    surface = CalendarView()
    qtbot.addWidget(surface)
    surface.resize(900, 500)
    surface.set_days("week", MONDAY.date())
    pictures = DisplayListBuilder()
    surface.set_picture(pictures.of(SEEN, NOW, folded, Filter(), {}, {}))
    surface.show()
    qtbot.waitExposed(surface)
    qtbot.wait(50)
    before = surface.viewport().grab().toImage()
    painted = Painted()
    surface.viewport().installEventFilter(painted)
    surface.set_picture(pictures.of(change(SEEN), NOW + timedelta(seconds=1), folded, Filter(), {}, {}))
    qtbot.wait(50)
    surface.viewport().removeEventFilter(painted)
    after = surface.viewport().grab().toImage()
    left = [
        (x, y)
        for y in range(after.height())
        for x in range(0, after.width(), 3)
        if before.pixel(x, y) != after.pixel(x, y) and not painted.region.contains(QPoint(x, y))
    ]
    assert left == []
    whole = QRegion(surface.viewport().rect())
    assert (whole - painted.region).isEmpty() != is_part

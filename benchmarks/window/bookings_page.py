"""Benchmark of drawing the calendar: a week of 256 lanes on 32 hosts with usage, as dense as 100,000 bookings a year.

Promises: a week of 256 lanes is drawn in at most 100 ms in a window of 1440 × 900 pixels, which shows only part of the
lanes; and no step of a drag takes longer than two screen frames, from the mouse event to the last pixel, including the
check for a refusal. The time to draw all lanes in a single picture is reported without a promise. The calendar is drawn
on one thread, which never waits. The CPU time of this thread is measured, because the elapsed time would include other
work on the machine.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")

from PySide6.QtCore import QPoint, Qt
from PySide6.QtGui import QPainter, QPixmap
from PySide6.QtTest import QTest

from benchmarks.harness import Promise, record, show
from benchmarks.window.application import themed_application
from torchyard_core.booking.model import Booking, Slot, State, Use
from torchyard_core.home import Home
from torchyard_gui.bookings.calendar.display_list import DisplayListBuilder
from torchyard_gui.bookings.page import BookingsPage
from torchyard_gui.bridge.bookings_model import BookingsModel, CalendarState
from torchyard_gui.bridge.fleet_model import FleetModel
from torchyard_gui.theme.tokens import METRICS as M

SIZE = (1440, 900)
HOSTS, GPUS = 32, 8
ROUNDS = 15
STEPS = 60
LIMIT_MS = 100.0
STALL_MS = 33.0
MONDAY = datetime(2031, 1, 6, tzinfo=UTC)
NOW = MONDAY + timedelta(days=2, hours=9)
PEOPLE = ("kim", "vision", "speech", "robots", "intern", "nlp", "audio")


def full_week() -> CalendarState:
    """Returns a week in which groups of one to four GPUs are booked with gaps of 15 minutes and used until now."""
    slots = tuple(
        Slot(f"GPU-{host:02}-{number}", f"n{host:02}", number, "NVIDIA H100 80GB HBM3", 81559)
        for host in range(HOSTS)
        for number in range(GPUS)
    )
    bookings: list[Booking] = []
    uses: list[Use] = []
    for host in range(HOSTS):
        first, group = 0, 0
        while first < GPUS:
            count = min((1, 2, 3, 1, 4)[(host + group) % 5], GPUS - first)
            gpus = tuple(f"GPU-{host:02}-{number}" for number in range(first, first + count))
            start = MONDAY
            while start < MONDAY + timedelta(days=7):
                length = timedelta(hours=6 + (host * 7 + group * 5 + len(bookings)) % 11)
                owner = PEOPLE[len(bookings) % len(PEOPLE)]
                bookings.append(
                    Booking(
                        f"b{len(bookings)}",
                        owner,
                        f"sweep {len(bookings)}",
                        "",
                        gpus,
                        start,
                        start + length,
                        "UTC",
                        State.BOOKED,
                        MONDAY,
                        MONDAY,
                    )
                )
                if start < NOW:
                    uses += [Use(gpu, f"n{host:02}", owner, start, min(start + length * 0.8, NOW)) for gpu in gpus]
                start += length + timedelta(minutes=15)
            first, group = first + count, group + 1
    return CalendarState(tuple(bookings), slots, NOW, True, person="kim", uses=tuple(uses), zone="UTC")


def main() -> list[Promise]:
    application = themed_application()
    seen = full_week()
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="torchyard-bench-") as folder:
        home = Home(Path(folder))
        fleet = FleetModel(home, home.fleet_file)
        model = BookingsModel(home, fleet, clock=lambda: NOW)
        model.reload = lambda: None  # type: ignore[method-assign]  # Reading the calendar is not measured.
        model.seen, model.has_loaded = seen, True
        page = BookingsPage(model)
        page.folded = set()
        page.resize(*SIZE)
        page.go_today()
        page.show()
        application.processEvents()
        surface = page.surface
        height = surface.picture.lanes.height + M.days_header
        everything = QPixmap(surface.viewport().width(), height)

        def draw_all() -> None:
            painter = QPainter(everything)
            surface.paint_all(painter, height)
            painter.end()

        def put_together() -> None:
            surface.set_picture(DisplayListBuilder().of(seen, NOW, frozenset(), page.bar.filter, {}, {}))

        screen = QPixmap(surface.viewport().size())
        arms: dict[str, Callable[[], object]] = {
            f"all {HOSTS * GPUS} lanes, {len(seen.bookings)} bookings": draw_all,
            "those in sight": lambda: surface.viewport().render(screen),
            "put together anew": put_together,
        }
        for name, work in arms.items():
            work()
            found[name] = [of_thread(work) for _ in range(ROUNDS)]
        found["a step of a drag"] = drag(page)
        page.hide()
        page.close_page()
        model.close()
        fleet.close()
    show("The calendar", found, "ms")
    shown = statistics.median(found["those in sight"])
    promises = [
        Promise(f"a week of {HOSTS * GPUS} lanes drawn", shown, LIMIT_MS, "ms"),
        Promise("the longest step of a drag", max(found["a step of a drag"]), STALL_MS, "ms"),
    ]
    record("bookings_page", {f"{name}, ms": values for name, values in found.items()}, promises)
    return promises


def of_thread(work: Callable[[], object]) -> float:
    """Returns the CPU time of a call on this thread in milliseconds."""
    start = time.thread_time()
    work()
    return (time.thread_time() - start) * 1000


def drag(page: BookingsPage) -> list[float]:
    """Drags a booking over the calendar.

    Returns:
        The CPU time of each step in milliseconds: mouse event, refusal check and repaint.
    """
    viewport = page.surface.viewport()
    block = next(
        one for one in page.surface.picture.blocks if one.start > NOW.timestamp() and one.booking.owner == "kim"
    )
    page.surface.select(block.booking.id)
    top = M.days_header + block.top - page.surface.verticalScrollBar().value() + 8
    begin = QPoint(round(page.surface.axis.x_of((block.start + block.end) / 2)) + M.lane_header, top)
    QTest.mousePress(viewport, Qt.MouseButton.LeftButton, pos=begin)
    QTest.mouseMove(viewport, begin + QPoint(12, 4))
    viewport.repaint()
    steps = []
    for step in range(STEPS):
        at = begin + QPoint(12 + step * 4, 4 + step * 3 % 120)
        start = time.thread_time()
        QTest.mouseMove(viewport, at)
        viewport.repaint()
        steps.append((time.thread_time() - start) * 1000)
    page.surface.cancel()
    QTest.mouseRelease(viewport, Qt.MouseButton.LeftButton, pos=begin)
    return steps


if __name__ == "__main__":
    main()

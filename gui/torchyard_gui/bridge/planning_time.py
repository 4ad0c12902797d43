"""The planned time of the Topology page, and the bookings during that time."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, time, timedelta
from typing import TYPE_CHECKING

from PySide6.QtCore import QObject, QTimer, Signal

from torchyard_core.booking.planned_time import NOW, PlannedBookings, PlannedTime, bookings_in, when_booked
from torchyard_core.booking.time_parser import local_zone
from torchyard_core.formatting import until
from torchyard_gui.bridge.fleet_model import FleetModel

if TYPE_CHECKING:
    from torchyard_core.booking.model import Booking
    from torchyard_gui.bridge.bookings_model import BookingsModel, CalendarState

TICK_MS = 30_000
"""Interval in milliseconds at which the time "now" is updated."""


def utc_now() -> datetime:
    return datetime.now(UTC).replace(microsecond=0)


class PlanningTime(QObject):
    """The planned time and the bookings that overlap it. Without a calendar, there are no bookings."""

    changed = Signal()
    """Emitted when the planned time, or a booking that overlaps it, has changed."""
    chosen = Signal(object)
    """Emitted with the PlannedTime that the user chose."""

    def __init__(
        self,
        fleet: FleetModel | None = None,
        calendar: Callable[[], BookingsModel | None] = lambda: None,
        planned: PlannedTime | None = None,
        parent: QObject | None = None,
    ):
        """Restores the stored planned time. `begin` starts the updates.

        Args:
            calendar: Returns the model of the bookings, or None while the user has no calendar.
            planned: The planned time that the last window stored.
        """
        super().__init__(parent)
        self._fleet = fleet
        self._calendar = calendar
        self._planned = planned or PlannedTime()
        self._clock: Callable[[], datetime] = utc_now
        self.zone = local_zone()
        """Zone in which times are parsed and shown."""
        self.booked = PlannedBookings()
        self.away = ""
        """While the calendar is unreachable, the time at which the bookings were loaded, as text, or "?" if it is
        unknown. Empty while the calendar is reachable.
        """
        self._last_state: object = None
        self._is_visible = False
        self._tick = QTimer(self, interval=TICK_MS)
        self._tick.timeout.connect(self._advance)

    @property
    def now(self) -> datetime:
        return self._clock()

    @property
    def planned(self) -> PlannedTime:
        return self._planned.at(self.now)

    @property
    def words(self) -> str:
        """The planned time as text, such as `now, 8 h`."""
        return self.planned.words(self.now, self.zone)

    @property
    def start_words(self) -> str:
        """The start of the planned time as text, such as `Tue 24 Nov 09:00`, or `now` if the start is not in the
        future.
        """
        start = self.planned.start
        return NOW if start is None else until(self.now, start, self.zone)

    def choose(self, planned: PlannedTime) -> None:
        if planned != self._planned:
            self._planned = planned
            self.chosen.emit(planned)
            self.begin()
            self.refresh()

    def begin(self) -> None:
        """Starts loading the planned days and updating the time "now", if there is a calendar."""
        model = self._calendar()
        if model is None:
            return
        self._clock = lambda: model.now
        self._tick.start()
        model.watch(self._is_visible, "planning")
        # Whole days are loaded, because the calendar would otherwise be reloaded whenever "now" advances.
        when = self.planned.interval(self.now)
        since = datetime.combine(when.start.date(), time(), UTC)
        model.show(since, datetime.combine(when.end.date(), time(), UTC) + timedelta(days=1), "planning")

    def watch(self, on: bool) -> None:
        """Sets whether the planned time is visible."""
        self._is_visible = on
        # Before `begin` is called, the timer is inactive and no database may be opened.
        if self._tick.isActive() and (model := self._calendar()) is not None:
            model.watch(on, "planning")

    def refresh(self) -> None:
        """Passes the bookings that overlap the planned time to the planner."""
        model = self._calendar()
        seen = model.seen if model is not None else None
        if seen is not None and model is not None and model.has_loaded:
            self._take(seen)
        planned = self.planned
        words = {gpu: self.who(booking) for gpu, booking in self.booked.others.items()}
        state = (planned, self.words, words, self.booked.own, self.away, self.zone)
        if self._fleet is not None:
            self._fleet.set_booked(words, is_later=planned.is_later)
        if state != self._last_state:
            self._last_state = state
            self.changed.emit()

    def _advance(self) -> None:
        self.begin()
        self.refresh()

    def who(self, booking: Booking) -> str:
        """Returns the owner and the time of a booking, such as `kim until 18:00`."""
        return f"{booking.owner} {when_booked(booking, self.planned.interval(self.now).start, self.zone)}"

    def stop(self) -> None:
        """Stops the timer; called when the window closes."""
        self._tick.stop()

    def _take(self, seen: CalendarState) -> None:
        self.zone = seen.zone
        self.booked = bookings_in(seen.bookings, seen.person, self.planned.interval(self.now))
        self.away = ""
        if not seen.is_live:
            self.away = f"{seen.as_of:%Y-%m-%d %H:%M} UTC" if seen.as_of is not None else "?"

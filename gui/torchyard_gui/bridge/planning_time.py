"""For when the window plans: what "free" means on the Topology page, and who has which GPU booked in that time."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, time, timedelta
from typing import TYPE_CHECKING

from PySide6.QtCore import QObject, QTimer, Signal

from torchyard_core.booking.planned_time import BookedThen, PlannedTime, booked_then, when_booked
from torchyard_core.booking.time_parser import local_zone
from torchyard_gui.bridge.fleet_model import FleetModel

if TYPE_CHECKING:
    from torchyard_core.booking.model import Booking
    from torchyard_gui.bridge.bookings_model import BookingsModel, Seen

TICK_MS = 30_000
"""How often "now" moves on."""


def utc_now() -> datetime:
    return datetime.now(UTC).replace(microsecond=0)


class PlanningTime(QObject):
    """The time that is planned for. Without a calendar nobody has booked anything."""

    changed = Signal()
    """Another time, or other bookings in it."""
    chosen = Signal(object)
    """Somebody chose another PlannedTime."""

    def __init__(
        self,
        fleet: FleetModel | None = None,
        calendar: Callable[[], BookingsModel | None] = lambda: None,
        planned: PlannedTime | None = None,
        parent: QObject | None = None,
    ):
        """`calendar` gives the bookings once there are any to speak of; None until then. `planned`: what was chosen
        when the window was last open."""
        super().__init__(parent)
        self._fleet = fleet
        self._calendar = calendar
        self._planned = planned or PlannedTime()
        self._clock: Callable[[], datetime] = utc_now
        self.zone = local_zone()
        """Of times that are written and read."""
        self.booked = BookedThen()
        self.away = ""
        """Since when the calendar is away, where it is: then what is said of it is as of that time."""
        self._said: object = None
        self._is_visible = False
        self._tick = QTimer(self)
        self._tick.setInterval(TICK_MS)
        self._tick.timeout.connect(self._go_on)

    @property
    def now(self) -> datetime:
        return self._clock()

    @property
    def planned(self) -> PlannedTime:
        return self._planned.at(self.now)

    @property
    def words(self) -> str:
        """`now, 8 h`."""
        return self.planned.words(self.now, self.zone)

    def choose(self, planned: PlannedTime) -> None:
        """Plans for another time."""
        if planned != self._planned:
            self._planned = planned
            self.chosen.emit(planned)
            self.begin()
            self.look()

    def begin(self) -> None:
        """Looks at the calendar's days that are planned for, and lets time go on, if there is a calendar."""
        model = self._calendar()
        if model is None:
            return
        self._clock = lambda: model.now
        self._tick.start()
        model.watch(self._is_visible, "planning")
        # Whole days: as "now" moves on, the calendar is not to be read anew each time.
        when = self.planned.interval(self.now)
        since = datetime.combine(when.start.date(), time(), UTC)
        model.show(since, datetime.combine(when.end.date(), time(), UTC) + timedelta(days=1), "planning")

    def watch(self, on: bool) -> None:
        """Whether the planned time is visible."""
        self._is_visible = on
        if self._tick.isActive() and (model := self._calendar()) is not None:  # else no database is opened yet
            model.watch(on, "planning")

    def look(self) -> None:
        """Sees who has what booked in the planned time, and tells the planner."""
        model = self._calendar()
        seen = model.seen if model is not None else None
        if seen is not None and model is not None and model.has_loaded:
            self._take(seen)
        planned = self.planned
        words = {gpu: self.who(booking) for gpu, booking in self.booked.others.items()}
        said = (planned, self.words, words, self.booked.own, self.away, self.zone)
        if self._fleet is not None:
            self._fleet.set_booked(words, is_later=planned.is_later)
        if said != self._said:
            self._said = said
            self.changed.emit()

    def _go_on(self) -> None:
        self.begin()
        self.look()

    def who(self, booking: Booking) -> str:
        """`kim until 18:00`."""
        return f"{booking.owner} {when_booked(booking, self.planned.interval(self.now).start, self.zone)}"

    def stop(self) -> None:
        """For a window that closes."""
        self._tick.stop()

    def _take(self, seen: Seen) -> None:
        self.zone = seen.zone
        self.booked = booked_then(seen.bookings, seen.person, self.planned.interval(self.now))
        self.away = ""
        if not seen.is_live:
            self.away = f"{seen.as_of:%Y-%m-%d %H:%M} UTC" if seen.as_of is not None else "?"

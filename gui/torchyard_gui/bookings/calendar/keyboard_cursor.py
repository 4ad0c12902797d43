"""The keyboard cursor of the calendar: lanes and a time range in steps of a quarter of an hour. Does not depend on
Qt.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from torchyard_core.booking.model import Booking
from torchyard_gui.bookings.calendar.time_axis import STEP_S


@dataclass(frozen=True)
class Cursor:
    """The marked area of the calendar: the lanes from index `anchor` to index `lane`, and the time from `start` to
    `end` in seconds since 1970.
    """

    anchor: int
    lane: int
    start: float
    end: float

    @property
    def lanes(self) -> range:
        return range(min(self.anchor, self.lane), max(self.anchor, self.lane) + 1)

    def moved(self, lanes: int, steps: int, count: int) -> Cursor:
        """Returns a cursor that is moved by `lanes` lanes or, if `lanes` is 0, by `steps` quarters of an hour.

        A cursor that is moved to another lane covers only that lane. `count` is the number of lanes in the calendar.
        """
        if lanes:
            lane = _within(self.lane + lanes, count)
            return replace(self, anchor=lane, lane=lane)
        return replace(self, start=self.start + steps * STEP_S, end=self.end + steps * STEP_S)

    def extended(self, lanes: int, steps: int, count: int) -> Cursor:
        """Returns a cursor that is extended by `lanes` lanes and whose end is moved by `steps` quarters of an hour. The
        cursor stays at least a quarter of an hour long. `count` is the number of lanes in the calendar.
        """
        end = max(self.end + steps * STEP_S, self.start + STEP_S)
        return replace(self, lane=_within(self.lane + lanes, count), end=end)

    def with_edges(self, start: int = 0, end: int = 0) -> Cursor:
        """Returns a cursor whose start and end are moved by the given numbers of quarters of an hour.

        The cursor stays at least a quarter of an hour long.
        """
        first = self.start + start * STEP_S
        last = self.end + end * STEP_S
        return replace(self, start=min(first, last - STEP_S), end=max(last, first + STEP_S)) if last > first else self


def _within(lane: int, count: int) -> int:
    return min(max(lane, 0), max(count - 1, 0))


class KeyboardEdit:
    """A change of a booking's start and end by keyboard.

    `is_changed` is True if the start or the end differs from that of the booking.
    """

    def __init__(self, booking: Booking):
        self.booking = booking
        self.start = booking.start.timestamp()
        self.end = booking.end.timestamp()
        self.reason = ""

    @property
    def is_changed(self) -> bool:
        return (self.start, self.end) != (self.booking.start.timestamp(), self.booking.end.timestamp())

    def move(self, start: int, end: int) -> None:
        """Moves the start and the end by the given numbers of quarters of an hour.

        Does nothing if the booking would become shorter than a quarter of an hour.
        """
        first, last = self.start + start * STEP_S, self.end + end * STEP_S
        if last - first >= STEP_S:
            self.start, self.end = first, last

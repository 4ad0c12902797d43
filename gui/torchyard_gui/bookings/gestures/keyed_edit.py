"""Moving the edges of a booking by keys: nothing is changed before Enter."""

from __future__ import annotations

from torchyard_core.booking.model import Booking
from torchyard_gui.bookings.calendar.time_axis import STEP_S


class KeyedEdit:
    """A booking whose edges are being moved. `is_changed` once they are elsewhere."""

    def __init__(self, booking: Booking):
        self.booking = booking
        self.start = booking.start.timestamp()
        self.end = booking.end.timestamp()
        self.reason = ""

    @property
    def is_changed(self) -> bool:
        return (self.start, self.end) != (self.booking.start.timestamp(), self.booking.end.timestamp())

    def move(self, start: int, end: int) -> None:
        """By so many quarters of an hour each; never shorter than one."""
        first, last = self.start + start * STEP_S, self.end + end * STEP_S
        if last - first >= STEP_S:
            self.start, self.end = first, last

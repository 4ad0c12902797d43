"""Moving one end of a booking."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import QPoint, Qt
from PySide6.QtWidgets import QApplication

from torchyard_core.booking.model import Booking
from torchyard_gui.bookings.calendar.gestures import Change
from torchyard_gui.bookings.calendar.time_axis import STEP_S, snapped
from torchyard_gui.bookings.gestures.ground import Ground
from torchyard_gui.widgets.gesture import Gesture


class ResizeBooking(Gesture):
    """Begins as a press on an end of a booking: its start, or its end."""

    cursor = Qt.CursorShape.SizeHorCursor

    def __init__(
        self,
        ground: Ground,
        booking: Booking,
        at_start: bool,
        position: QPoint,
        change: Change,
        refused: Callable[[str], None],
    ):
        self._ground = ground
        self.booking = booking
        self._at_start = at_start
        self._from = position
        self._change = change
        self._refused = refused
        self._held: tuple[float, float] | None = None
        self._reason = ""

    def move(self, position: QPoint) -> None:
        if self._held is None and (position - self._from).manhattanLength() < QApplication.startDragDistance():
            return
        start, end = self.booking.start.timestamp(), self.booking.end.timestamp()
        edge = snapped(self._ground.second_at(position))
        held = (min(edge, end - STEP_S), end) if self._at_start else (start, max(edge, start + STEP_S))
        if held != self._held:
            self._held = held
            self._reason = self._ground.hold(self.booking.gpus, *held, self.booking, position)

    def finish(self, position: QPoint) -> None:
        self.move(position)
        self._ground.let_go()
        if self._held is None or self._held == (self.booking.start.timestamp(), self.booking.end.timestamp()):
            return
        if self._reason:
            self._refused(self._reason)
        else:
            self._change(self.booking, self.booking.gpus, *self._held)

    def cancel(self) -> None:
        self._ground.let_go()

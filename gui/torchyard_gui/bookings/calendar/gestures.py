"""Moving a booking to another time, and to other lanes, all its GPUs together."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import QPoint, Qt
from PySide6.QtWidgets import QApplication

from torchyard_core.booking.model import Booking
from torchyard_gui.bookings.calendar.time_axis import snapped
from torchyard_gui.bookings.gestures.ground import Ground
from torchyard_gui.widgets.gesture import Gesture

Change = Callable[[Booking, tuple[str, ...], float, float], None]


class MoveBooking(Gesture):
    """Begins as a press on a booking; carries it from the first pixels that are more than a shaky hand."""

    cursor = Qt.CursorShape.ClosedHandCursor

    def __init__(
        self, ground: Ground, booking: Booking, position: QPoint, change: Change, refused: Callable[[str], None]
    ):
        self._ground = ground
        self.booking = booking
        self._from = position
        self._change = change
        self._refused = refused
        self._grip = ground.second_at(position)
        self._lanes = [row.slots[0].id for row in ground.lane_rows()]
        self._lane = _number(self._lanes, ground, position)
        self._held: tuple[tuple[str, ...], float, float] | None = None
        self._reason = ""

    def move(self, position: QPoint) -> None:
        if self._held is None and (position - self._from).manhattanLength() < QApplication.startDragDistance():
            return
        start, end = self.booking.start.timestamp(), self.booking.end.timestamp()
        shift = snapped(start + self._ground.second_at(position) - self._grip) - start
        held = self._shifted(_number(self._lanes, self._ground, position) - self._lane), start + shift, end + shift
        if held != self._held:
            self._held = held
            changes = held != (self.booking.gpus, start, end)
            self._reason = self._ground.hold(*held, self.booking, position) if changes else ""
            if not changes:
                self._ground.let_go()

    def _shifted(self, lanes: int) -> tuple[str, ...]:
        """The GPUs so many lanes further down; GPUs of folded hosts stay, and no lane goes beyond the last."""
        numbers = {gpu: self._lanes.index(gpu) for gpu in self.booking.gpus if gpu in self._lanes}
        if not numbers:
            return self.booking.gpus
        lanes = min(max(lanes, -min(numbers.values())), len(self._lanes) - 1 - max(numbers.values()))
        stay = [gpu for gpu in self.booking.gpus if gpu not in numbers]
        return tuple(sorted([*stay, *(self._lanes[number + lanes] for number in numbers.values())]))

    def finish(self, position: QPoint) -> None:
        self.move(position)
        self._ground.let_go()
        here = (self.booking.gpus, self.booking.start.timestamp(), self.booking.end.timestamp())
        if self._held is None or self._held == here:
            return
        if self._reason:
            self._refused(self._reason)
        else:
            self._change(self.booking, *self._held)

    def cancel(self) -> None:
        self._ground.let_go()


def _number(lanes: list[str], ground: Ground, position: QPoint) -> int:
    row = ground.lane_at(position)
    return lanes.index(row.slots[0].id) if row is not None else 0

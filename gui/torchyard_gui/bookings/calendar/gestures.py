"""Mouse gestures of the calendar: draw, move and resize a booking."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import QPoint, Qt
from PySide6.QtWidgets import QApplication

from torchyard_core.booking.model import Booking
from torchyard_gui.bookings.calendar.calendar_target import GestureTarget
from torchyard_gui.bookings.calendar.time_axis import STEP_S, snapped
from torchyard_gui.widgets.gesture import Gesture

Change = Callable[[Booking, tuple[str, ...], float, float], None]


class MoveBooking(Gesture):
    """Moves a booking in time and across lanes, all its GPUs together. Starts beyond the drag distance."""

    cursor = Qt.CursorShape.ClosedHandCursor

    def __init__(
        self, target: GestureTarget, booking: Booking, position: QPoint, change: Change, refused: Callable[[str], None]
    ):
        self._target = target
        self.booking = booking
        self._from = position
        self._change = change
        self._refused = refused
        self._grip = target.second_at(position)
        self._lanes = [row.slots[0].id for row in target.lane_rows()]
        self._lane = _number(self._lanes, target, position)
        self._held: tuple[tuple[str, ...], float, float] | None = None
        self._reason = ""

    def move(self, position: QPoint) -> None:
        if self._held is None and (position - self._from).manhattanLength() < QApplication.startDragDistance():
            return
        start, end = self.booking.start.timestamp(), self.booking.end.timestamp()
        shift = snapped(start + self._target.second_at(position) - self._grip) - start
        held = self._shifted(_number(self._lanes, self._target, position) - self._lane), start + shift, end + shift
        if held != self._held:
            self._held = held
            changes = held != (self.booking.gpus, start, end)
            self._reason = self._target.show_preview(*held, self.booking, position) if changes else ""
            if not changes:
                self._target.end_preview()

    def _shifted(self, lanes: int) -> tuple[str, ...]:
        """Returns the GPUs `lanes` further down; GPUs of folded hosts stay, and no lane leaves the calendar."""
        numbers = {gpu: self._lanes.index(gpu) for gpu in self.booking.gpus if gpu in self._lanes}
        if not numbers:
            return self.booking.gpus
        lanes = min(max(lanes, -min(numbers.values())), len(self._lanes) - 1 - max(numbers.values()))
        stay = [gpu for gpu in self.booking.gpus if gpu not in numbers]
        return tuple(sorted([*stay, *(self._lanes[number + lanes] for number in numbers.values())]))

    def finish(self, position: QPoint) -> None:
        self.move(position)
        self._target.end_preview()
        here = (self.booking.gpus, self.booking.start.timestamp(), self.booking.end.timestamp())
        if self._held is None or self._held == here:
            return
        if self._reason:
            self._refused(self._reason)
        else:
            self._change(self.booking, *self._held)

    def cancel(self) -> None:
        self._target.end_preview()


def _number(lanes: list[str], target: GestureTarget, position: QPoint) -> int:
    row = target.lane_at(position)
    return lanes.index(row.slots[0].id) if row is not None else 0


class ResizeBooking(Gesture):
    """Moves the start or the end of a booking."""

    cursor = Qt.CursorShape.SizeHorCursor

    def __init__(
        self,
        target: GestureTarget,
        booking: Booking,
        at_start: bool,
        position: QPoint,
        change: Change,
        refused: Callable[[str], None],
    ):
        self._target = target
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
        edge = snapped(self._target.second_at(position))
        held = (min(edge, end - STEP_S), end) if self._at_start else (start, max(edge, start + STEP_S))
        if held != self._held:
            self._held = held
            self._reason = self._target.show_preview(self.booking.gpus, *held, self.booking, position)

    def finish(self, position: QPoint) -> None:
        self.move(position)
        self._target.end_preview()
        if self._held is None or self._held == (self.booking.start.timestamp(), self.booking.end.timestamp()):
            return
        if self._reason:
            self._refused(self._reason)
        else:
            self._change(self.booking, self.booking.gpus, *self._held)

    def cancel(self) -> None:
        self._target.end_preview()


Book = Callable[[tuple[str, ...], float, float], None]


class DrawBooking(Gesture):
    """Draws a new booking on free time; a press without a drag calls `clicked`."""

    cursor = Qt.CursorShape.CrossCursor

    def __init__(
        self,
        target: GestureTarget,
        position: QPoint,
        book: Book,
        refused: Callable[[str], None],
        clicked: Callable[[QPoint], None],
    ):
        self._target = target
        self._from = position
        self._book = book
        self._refused = refused
        self._clicked = clicked
        self._anchor = target.lane_at(position)
        self._begin = target.second_at(position)
        self._drawn: tuple[tuple[str, ...], float, float] | None = None
        self._reason = ""

    def move(self, position: QPoint) -> None:
        if self._anchor is None:
            return
        if self._drawn is None and (position - self._from).manhattanLength() < QApplication.startDragDistance():
            return
        lane = self._target.lane_at(position) or self._anchor
        top, bottom = sorted((self._anchor.top, lane.top))
        gpus = tuple(row.slots[0].id for row in self._target.lane_rows() if top <= row.top <= bottom)
        first, last = sorted((snapped(self._begin), snapped(self._target.second_at(position))))
        drawn = gpus, first, max(last, first + STEP_S)
        if drawn != self._drawn:
            # The refusal is computed once per quarter of an hour and lane, not once per pixel.
            self._drawn = drawn
            self._reason = self._target.show_preview(*drawn, None, position)

    def finish(self, position: QPoint) -> None:
        self.move(position)
        self._target.end_preview()
        if self._drawn is None:
            self._clicked(position)
        elif self._reason:
            self._refused(self._reason)
        else:
            self._book(*self._drawn)

    def cancel(self) -> None:
        self._target.end_preview()

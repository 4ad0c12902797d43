"""Mouse gestures of the calendar that draw, move and resize bookings."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import QPoint, Qt
from PySide6.QtWidgets import QApplication

from torchyard_core.booking.model import Booking
from torchyard_gui.bookings.calendar.calendar_target import GestureTarget
from torchyard_gui.bookings.calendar.time_axis import STEP_S
from torchyard_gui.widgets.gesture import Gesture

Change = Callable[[Booking, tuple[str, ...], float, float], None]
Refused = Callable[[str], None]


class _Drag(Gesture):
    """A gesture that begins once the pointer has moved by the drag distance. Shows a preview of a booking with its
    GPUs, start and end.
    """

    def __init__(self, target: GestureTarget, position: QPoint, refused: Refused):
        self._target = target
        self._from = position
        self._refused = refused
        self._held: tuple[tuple[str, ...], float, float] | None = None
        """The GPUs, start and end that are previewed; None before the drag has started."""
        self._reason = ""

    def _has_started(self, position: QPoint) -> bool:
        far = (position - self._from).manhattanLength() >= QApplication.startDragDistance()
        return self._held is not None or far

    def cancel(self) -> None:
        self._target.end_preview()


class _Edit(_Drag):
    """A drag gesture that changes an existing booking."""

    def __init__(self, target: GestureTarget, booking: Booking, position: QPoint, change: Change, refused: Refused):
        super().__init__(target, position, refused)
        self.booking = booking
        self._change = change
        self._start, self._end = booking.start.timestamp(), booking.end.timestamp()

    def finish(self, position: QPoint) -> None:
        self.move(position)
        self._target.end_preview()
        if self._held is None or self._held == (self.booking.gpus, self._start, self._end):
            return
        if self._reason:
            self._refused(self._reason)
        else:
            self._change(self.booking, *self._held)


class MoveBooking(_Edit):
    """A drag gesture that moves a booking in time and across lanes, with all of its GPUs."""

    cursor = Qt.CursorShape.ClosedHandCursor

    def __init__(self, target: GestureTarget, booking: Booking, position: QPoint, change: Change, refused: Refused):
        super().__init__(target, booking, position, change, refused)
        self._grip = target.second_at(position)
        self._lanes = [row.slots[0].id for row in target.lane_rows()]
        self._lane = self._number(position)

    def move(self, position: QPoint) -> None:
        if not self._has_started(position):
            return
        begin = self._start + self._target.second_at(position) - self._grip
        # A drag that only changes the lane keeps the exact time, even if it is not a multiple of the step.
        far = abs(begin - self._start) >= self._target.drag_step() / 2
        shift = self._target.snapped(begin) - self._start if far else 0.0
        held = self._shifted(self._number(position) - self._lane), self._start + shift, self._end + shift
        if held != self._held:
            self._held = held
            changes = held != (self.booking.gpus, self._start, self._end)
            self._reason = self._target.show_preview(*held, self.booking, position) if changes else ""
            if not changes:
                self._target.end_preview()

    def _shifted(self, lanes: int) -> tuple[str, ...]:
        """Returns the GPUs of the booking after a move down by `lanes` lanes.

        GPUs of folded hosts are not replaced. The distance is limited so that every GPU stays within the calendar.
        """
        numbers = {gpu: self._lanes.index(gpu) for gpu in self.booking.gpus if gpu in self._lanes}
        if not numbers:
            return self.booking.gpus
        lanes = min(max(lanes, -min(numbers.values())), len(self._lanes) - 1 - max(numbers.values()))
        stay = [gpu for gpu in self.booking.gpus if gpu not in numbers]
        return tuple(sorted([*stay, *(self._lanes[number + lanes] for number in numbers.values())]))

    def _number(self, position: QPoint) -> int:
        """Returns the index of the lane at a position, or 0 if there are no lanes."""
        row = self._target.lane_at(position)
        return self._lanes.index(row.slots[0].id) if row is not None else 0


class ResizeBooking(_Edit):
    """A drag gesture that moves the start or the end of a booking."""

    cursor = Qt.CursorShape.SizeHorCursor

    def __init__(
        self,
        target: GestureTarget,
        booking: Booking,
        at_start: bool,
        position: QPoint,
        change: Change,
        refused: Refused,
    ):
        super().__init__(target, booking, position, change, refused)
        self._at_start = at_start

    def move(self, position: QPoint) -> None:
        if not self._has_started(position):
            return
        edge, gpus = self._target.snapped(self._target.second_at(position)), self.booking.gpus
        if self._at_start:
            held = gpus, min(edge, self._end - STEP_S), self._end
        else:
            held = gpus, self._start, max(edge, self._start + STEP_S)
        if held != self._held:
            self._held = held
            self._reason = self._target.show_preview(*held, self.booking, position)


Book = Callable[[tuple[str, ...], float, float], None]


class DrawBooking(_Drag):
    """A drag gesture that draws a new booking in free time. If the button is released without a drag, `clicked` is
    called.
    """

    cursor = Qt.CursorShape.CrossCursor

    def __init__(
        self, target: GestureTarget, position: QPoint, book: Book, refused: Refused, clicked: Callable[[QPoint], None]
    ):
        super().__init__(target, position, refused)
        self._book = book
        self._clicked = clicked
        self._anchor = target.lane_at(position)
        self._begin = target.second_at(position)

    def move(self, position: QPoint) -> None:
        if self._anchor is None or not self._has_started(position):
            return
        lane = self._target.lane_at(position) or self._anchor
        top, bottom = sorted((self._anchor.top, lane.top))
        gpus = tuple(row.slots[0].id for row in self._target.lane_rows() if top <= row.top <= bottom)
        edges = self._target.snapped(self._begin), self._target.snapped(self._target.second_at(position))
        first, last = sorted(edges)
        held = gpus, first, max(last, first + self._target.drag_step())
        if held != self._held:
            # The refusal is computed once per step and lane, because computing it for every pixel would be slow.
            self._held = held
            self._reason = self._target.show_preview(*held, None, position)

    def finish(self, position: QPoint) -> None:
        self.move(position)
        self._target.end_preview()
        if self._held is None:
            self._clicked(position)
        elif self._reason:
            self._refused(self._reason)
        else:
            self._book(*self._held)

"""Mouse input of the calendar: a press begins a gesture, folds a host, or selects a booking or a proposed booking."""

from __future__ import annotations

from PySide6.QtCore import QPoint, Qt

from torchyard_gui.bookings.calendar.blocks import Block
from torchyard_gui.bookings.calendar.calendar_target import CalendarTarget
from torchyard_gui.bookings.calendar.gestures import DrawBooking, MoveBooking, ResizeBooking
from torchyard_gui.bookings.calendar.hit_testing import edges_at, fit_at, shape_at
from torchyard_gui.bookings.calendar.keyboard_cursor import Cursor
from torchyard_gui.theme.tokens import METRICS as M
from torchyard_gui.widgets.gesture import Gesture

SCROLL_WITHIN = 18
HOUR = 3600.0


class MouseInput:
    """Handles mouse events and holds the gesture in progress. Positions are in viewport pixels.

    The selection changes only when the button is released, because selecting a booking opens a drawer beside the
    calendar, which shifts the blocks under the pointer.
    """

    def __init__(self, target: CalendarTarget):
        self._target = target
        self.gesture: Gesture | None = None
        self.pressed: Block | None = None
        """The block under the last press. A double click refers to this block, because the first click may have shifted
        the blocks.
        """
        self._selects: str | None = None
        """The ID to select when the button is released. None keeps the selection."""

    @property
    def lifted(self) -> str:
        """The ID of the booking that is being moved or resized, or "" if there is none."""
        return self.gesture.booking.id if isinstance(self.gesture, MoveBooking | ResizeBooking) else ""

    def press(self, position: QPoint) -> None:
        target = self._target
        if self.gesture is not None:
            return
        target.edit = None
        self.pressed = self._selects = None
        if position.y() < M.days_header:
            return
        row = target.row_at(position)
        if position.x() < M.lane_header:
            if row is not None and not row.is_lane:
                target.fold_wanted.emit(row.host)
            return
        self._selects = ""
        if row is None:
            return
        fit = fit_at(target.fits, target.picture, target.axis, target.in_lanes(position))
        if fit is not None:
            self._selects = None
            target.fit_pressed.emit(fit)
            return
        self.pressed = target.block_at(position)
        if self.pressed is not None:
            target.cursor_ = None
            self._selects = self.pressed.booking.id
            self._begin(self._gesture_on(self.pressed, position))
        elif row.is_lane:
            book, refused = target.book_wanted.emit, target.refused.emit
            self._begin(DrawBooking(target, position, book, refused, self._clicked))
        elif row.kind == "folded":
            target.fold_wanted.emit(row.host)

    def move(self, position: QPoint) -> None:
        if self.gesture is None:
            self._hover(position)
            return
        self._scroll_along(position)
        self.gesture.move(position)

    def release(self, position: QPoint) -> None:
        gesture, self.gesture = self.gesture, None
        if gesture is not None:
            self._target.still.forget()
            gesture.finish(position)
            self.leave()
            self._target.viewport().update()
        selects, self._selects = self._selects, None
        if selects is not None:
            self._target.select_quietly(selects)

    def cancel(self) -> bool:
        """Cancels the gesture. Returns whether a gesture was in progress."""
        if self.gesture is None:
            return False
        gesture, self.gesture = self.gesture, None
        self._selects = None
        gesture.cancel()
        return True

    def leave(self) -> None:
        self._target.viewport().unsetCursor()

    def _gesture_on(self, block: Block, position: QPoint) -> Gesture:
        target = self._target
        change, refused = target.change_wanted.emit, target.refused.emit
        at_start, at_end = edges_at(block, target.axis, position.x() - M.lane_header)
        if (at_start or at_end) and block.booking.is_live:
            return ResizeBooking(target, block.booking, at_start, position, change, refused)
        return MoveBooking(target, block.booking, position, change, refused)

    def _begin(self, gesture: Gesture) -> None:
        self.gesture = gesture
        self._target.still.forget()

    def _clicked(self, position: QPoint) -> None:
        """Moves the keyboard cursor to the clicked lane and time, and makes it one hour long."""
        target = self._target
        row = target.lane_at(position)
        if row is not None:
            lane = target.picture.lanes.lanes.index(row)
            step = target.drag_step()
            start = target.snapped(target.second_at(position) - step / 2)
            target.set_cursor(Cursor(lane, lane, start, start + HOUR))

    def _hover(self, position: QPoint) -> None:
        target = self._target
        on_header = position.x() < M.lane_header and position.y() > M.days_header
        block, at = target.block_at(position), target.in_lanes(position)
        shape = shape_at(block, target.picture, target.axis, at, on_header=on_header)
        if shape is None:
            self.leave()
        elif target.viewport().cursor().shape() != shape:
            target.viewport().setCursor(shape)

    def _scroll_along(self, position: QPoint) -> None:
        bar = self._target.verticalScrollBar()
        if position.y() < M.days_header + SCROLL_WITHIN:
            bar.setValue(bar.value() - M.lane)
        elif position.y() > self._target.viewport().height() - SCROLL_WITHIN:
            bar.setValue(bar.value() + M.lane)


def is_left(button: Qt.MouseButton) -> bool:
    return button == Qt.MouseButton.LeftButton

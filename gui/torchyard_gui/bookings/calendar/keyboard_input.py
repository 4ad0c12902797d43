"""Keyboard input of the calendar. Keys are identified by key code rather than by letter, so that they also work with a
Hangul input method.
"""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtGui import QKeyEvent

from torchyard_core.booking.model import Booking
from torchyard_gui.bookings.calendar.calendar_target import CalendarTarget
from torchyard_gui.bookings.calendar.keyboard_cursor import KeyboardEdit

Key = Qt.Key
ARROWS = {Key.Key_Left: (0, -1), Key.Key_Right: (0, 1), Key.Key_Up: (-1, 0), Key.Key_Down: (1, 0)}
"""The step of each arrow key, as (lanes, quarters of an hour)."""
HOUR_STEPS = 4
_EARLIER = (Key.Key_BracketLeft, Key.Key_BraceLeft)
_LATER = (Key.Key_BracketRight, Key.Key_BraceRight)


class KeyboardInput:
    """Translates keys into actions of the calendar.

    The arrow keys move the cursor by a lane or a quarter of an hour (with Ctrl, by an hour), Shift extends it, and
    Enter creates, changes or opens a booking. While proposed bookings are shown and there is no cursor, the arrow keys
    select one of them and Enter books it. `[` moves the start earlier and `]` the end later; with Shift, both move in
    the opposite direction.
    """

    def __init__(self, target: CalendarTarget):
        self._target = target

    def press(self, event: QKeyEvent) -> bool:
        """Handles a key. Returns whether the calendar has used the key."""
        key, held = Key(event.key()), event.modifiers()
        shift = bool(held & Qt.KeyboardModifier.ShiftModifier)
        control = bool(held & Qt.KeyboardModifier.ControlModifier)
        if key in (Key.Key_PageUp, Key.Key_PageDown):
            self._target.step_wanted.emit(1 if key == Key.Key_PageDown else -1)
            return True
        if key in (Key.Key_Return, Key.Key_Enter) and self._target.fits and self._target.cursor_ is None:
            self._target.fit_wanted.emit(self._target.chosen_fit)
            return True
        if not self._target.picture.lanes.lanes:
            return False
        if key in ARROWS and self._target.fits and self._target.cursor_ is None:
            self._choose_fit(sum(ARROWS[key]))
        elif key in ARROWS:
            self._arrow(*ARROWS[key], shift, control)
        elif key in _EARLIER or key in _LATER:
            self._edge(key in _LATER, inwards=shift)
        elif key in (Key.Key_Return, Key.Key_Enter):
            self._enter()
        else:
            return False
        return True

    def _choose_fit(self, by: int) -> None:
        """Selects the next or the previous proposed booking."""
        target = self._target
        number = min(max(target.chosen_fit + (1 if by > 0 else -1), 0), len(target.fits) - 1)
        target.fit_pressed.emit(number)

    def _arrow(self, lanes: int, steps: int, shift: bool, control: bool) -> None:
        target = self._target
        if target.edit is not None:
            target.cancel()
        cursor = target.cursor_
        if cursor is None:
            target.set_cursor(target.first_cursor())
            return
        count = len(target.picture.lanes.lanes)
        by = steps * (HOUR_STEPS if control else 1)
        target.set_cursor(cursor.extended(lanes, by, count) if shift else cursor.moved(lanes, by, count))
        self._follow(steps)

    def _follow(self, steps: int) -> None:
        """Shows the next or the previous days when the cursor leaves the shown days."""
        target = self._target
        cursor = target.cursor_
        if cursor is None or not steps:
            return
        if cursor.start >= target.axis.days[-1].end and steps > 0:
            target.step_wanted.emit(1)
        elif cursor.start < target.axis.starts[0] and steps < 0:
            target.step_wanted.emit(-1)

    def _edge(self, later: bool, *, inwards: bool) -> None:
        target = self._target
        # `[` moves the start earlier and `]` moves the end later; Shift reverses both directions.
        start, end = (0, -1 if inwards else 1) if later else (1 if inwards else -1, 0)
        booking = self._booking()
        if booking is not None:
            if target.edit is None or target.edit.booking.id != booking.id:
                target.edit = KeyboardEdit(booking)
            target.edit.move(start, end)
            target.preview_edit()
        elif target.cursor_ is not None:
            target.set_cursor(target.cursor_.with_edges(start, end))
        else:
            target.set_cursor(target.first_cursor())

    def _booking(self) -> Booking | None:
        target = self._target
        return next((block.booking for block in target.picture.blocks if block.booking.id == target.selection), None)

    def _enter(self) -> None:
        target = self._target
        edit, cursor = target.edit, target.cursor_
        if edit is not None and edit.is_changed:
            if edit.reason:
                target.refused.emit(edit.reason)
                return
            target.edit = None
            target.end_preview()
            target.change_wanted.emit(edit.booking, edit.booking.gpus, edit.start, edit.end)
        elif target.selection:
            target.activated.emit(target.selection)
        elif cursor is not None:
            gpus = target.gpus_of(cursor)
            reason = target.refuse(gpus, cursor.start, cursor.end, None)
            if reason:
                target.refused.emit(reason)
            else:
                target.book_wanted.emit(gpus, cursor.start, cursor.end)
        else:
            target.set_cursor(target.first_cursor())

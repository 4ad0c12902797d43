"""What keys do in the calendar. By key, not by letter: they work with a Hangul input method on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from PySide6.QtCore import Qt
from PySide6.QtGui import QKeyEvent

from torchyard_core.booking.model import Booking
from torchyard_gui.bookings.calendar.keyboard_cursor import KeyedEdit

if TYPE_CHECKING:
    from torchyard_gui.bookings.calendar.calendar_view import Surface

Key = Qt.Key
ARROWS = {Key.Key_Left: (0, -1), Key.Key_Right: (0, 1), Key.Key_Up: (-1, 0), Key.Key_Down: (1, 0)}
"""(lanes, quarters of an hour)."""
HOUR_STEPS = 4
_EARLIER = (Key.Key_BracketLeft, Key.Key_BraceLeft)
_LATER = (Key.Key_BracketRight, Key.Key_BraceRight)


class Keys:
    """Arrows move by lane and quarter of an hour (Ctrl: by an hour), Shift extends, Enter books or opens, `[` and `]`
    move the start and the end out, with Shift in."""

    def __init__(self, surface: Surface):
        self._surface = surface

    def press(self, event: QKeyEvent) -> bool:
        """Whether the key meant something."""
        key, held = Key(event.key()), event.modifiers()
        shift = bool(held & Qt.KeyboardModifier.ShiftModifier)
        control = bool(held & Qt.KeyboardModifier.ControlModifier)
        if key in (Key.Key_PageUp, Key.Key_PageDown):
            self._surface.step_wanted.emit(1 if key == Key.Key_PageDown else -1)
            return True
        if key in (Key.Key_Return, Key.Key_Enter) and self._surface.fits and self._surface.cursor_ is None:
            self._surface.fit_wanted.emit(self._surface.chosen_fit)
            return True
        if not self._surface.picture.lanes.lanes:
            return False
        if key in ARROWS:
            self._arrow(*ARROWS[key], shift, control)
        elif key in _EARLIER or key in _LATER:
            self._edge(key in _LATER, inwards=shift)
        elif key in (Key.Key_Return, Key.Key_Enter):
            self._enter()
        else:
            return False
        return True

    def _arrow(self, lanes: int, steps: int, shift: bool, control: bool) -> None:
        surface = self._surface
        if surface.edit is not None:
            surface.cancel()
        cursor = surface.cursor_
        if cursor is None:
            surface.set_cursor(surface.first_cursor())
            return
        count = len(surface.picture.lanes.lanes)
        by = steps * (HOUR_STEPS if control else 1)
        surface.set_cursor(cursor.extended(lanes, by, count) if shift else cursor.moved(lanes, by, count))
        self._follow(steps)

    def _follow(self, steps: int) -> None:
        """Beyond the last day shown come the next ones."""
        surface = self._surface
        cursor = surface.cursor_
        if cursor is None or not steps:
            return
        if cursor.start >= surface.axis.days[-1].end and steps > 0:
            surface.step_wanted.emit(1)
        elif cursor.start < surface.axis.starts[0] and steps < 0:
            surface.step_wanted.emit(-1)

    def _edge(self, later: bool, *, inwards: bool) -> None:
        surface = self._surface
        # `[` moves the start earlier and `]` the end later; with Shift each comes in.
        start, end = (0, -1 if inwards else 1) if later else (1 if inwards else -1, 0)
        booking = self._booking()
        if booking is not None:
            if surface.edit is None or surface.edit.booking.id != booking.id:
                surface.edit = KeyedEdit(booking)
            surface.edit.move(start, end)
            surface.hold_keyed()
        elif surface.cursor_ is not None:
            surface.set_cursor(surface.cursor_.with_edges(start, end))
        else:
            surface.set_cursor(surface.first_cursor())

    def _booking(self) -> Booking | None:
        surface = self._surface
        return next((block.booking for block in surface.picture.blocks if block.booking.id == surface.selection), None)

    def _enter(self) -> None:
        surface = self._surface
        edit, cursor = surface.edit, surface.cursor_
        if edit is not None and edit.is_changed:
            if edit.reason:
                surface.refused.emit(edit.reason)
                return
            surface.edit = None
            surface.let_go()
            surface.change_wanted.emit(edit.booking, edit.booking.gpus, edit.start, edit.end)
        elif surface.selection:
            surface.activated.emit(surface.selection)
        elif cursor is not None:
            gpus = surface.gpus_of(cursor)
            reason = surface.refuse(gpus, cursor.start, cursor.end, None)
            if reason:
                surface.refused.emit(reason)
            else:
                surface.book_wanted.emit(gpus, cursor.start, cursor.end)
        else:
            surface.set_cursor(surface.first_cursor())

"""The interface of the calendar view for gestures, mouse input and keyboard input.

Positions are in viewport pixels, times in seconds since 1970.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from PySide6.QtCore import QPoint, QPointF, SignalInstance
from PySide6.QtWidgets import QScrollBar, QWidget

from torchyard_core.booking.model import Booking
from torchyard_core.booking.search.slot_search import Fit
from torchyard_gui.bookings.calendar.blocks import Block
from torchyard_gui.bookings.calendar.calendar_painting import SnapshotCache
from torchyard_gui.bookings.calendar.display_list import DisplayList
from torchyard_gui.bookings.calendar.keyboard_cursor import Cursor, KeyboardEdit
from torchyard_gui.bookings.calendar.lanes import Row
from torchyard_gui.bookings.calendar.time_axis import Axis

Refuse = Callable[[Sequence[str], float, float, "Booking | None"], str]
"""Function that returns why GPUs cannot be booked from start to end, or "" if they can. The last argument is the
booking to change, or None for a new booking.
"""


class GestureTarget(Protocol):
    """The interface of the calendar view for mouse gestures."""

    def second_at(self, position: QPoint) -> float: ...
    def drag_step(self) -> float: ...
    def snapped(self, second: float) -> float: ...
    def lane_at(self, position: QPoint) -> Row | None: ...
    def lane_rows(self) -> Sequence[Row]: ...

    def show_preview(self, gpus: Sequence[str], start: float, end: float, of: Booking | None, at: QPoint) -> str:
        """Shows a preview of a booking with its times and, if it would be refused, the reason.

        Returns: The reason for the refusal, or "" if the booking would be accepted.
        """

    def end_preview(self) -> None:
        """Hides the preview."""


class CalendarTarget(GestureTarget, Protocol):
    """The interface of the calendar view for the handlers of mouse and keyboard input."""

    axis: Axis
    chosen_fit: int
    cursor_: Cursor | None
    edit: KeyboardEdit | None
    fits: tuple[Fit, ...]
    picture: DisplayList
    refuse: Refuse
    still: SnapshotCache

    @property
    def activated(self) -> SignalInstance: ...
    @property
    def book_wanted(self) -> SignalInstance: ...
    @property
    def change_wanted(self) -> SignalInstance: ...
    @property
    def fit_pressed(self) -> SignalInstance: ...
    @property
    def fit_wanted(self) -> SignalInstance: ...
    @property
    def fold_wanted(self) -> SignalInstance: ...
    @property
    def refused(self) -> SignalInstance: ...
    @property
    def step_wanted(self) -> SignalInstance: ...
    @property
    def selection(self) -> str: ...
    def block_at(self, position: QPoint) -> Block | None: ...
    def cancel(self) -> bool: ...
    def first_cursor(self) -> Cursor: ...
    def gpus_of(self, cursor: Cursor) -> tuple[str, ...]: ...
    def preview_edit(self) -> None: ...
    def in_lanes(self, position: QPoint) -> QPointF: ...
    def row_at(self, position: QPoint) -> Row | None: ...
    def select_quietly(self, booking_id: str) -> None: ...
    def set_cursor(self, cursor: Cursor | None) -> None: ...
    def verticalScrollBar(self) -> QScrollBar: ...
    def viewport(self) -> QWidget: ...

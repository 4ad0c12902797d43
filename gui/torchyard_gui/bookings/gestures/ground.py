"""What a gesture needs of the calendar that it happens in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from PySide6.QtCore import QPoint

from torchyard_core.booking.model import Booking
from torchyard_gui.bookings.calendar.lanes import Row


class Ground(Protocol):
    """The calendar, to a gesture. Positions are the viewport's, times seconds since 1970."""

    def second_at(self, position: QPoint) -> float: ...

    def lane_at(self, position: QPoint) -> Row | None: ...

    def lane_rows(self) -> Sequence[Row]: ...

    def hold(self, gpus: Sequence[str], start: float, end: float, of: Booking | None, at: QPoint) -> str:
        """Shows what is held, with its times or the reason why it cannot be; returns that reason."""

    def let_go(self) -> None:
        """Nothing is held any more."""

"""Drawing a new booking over lanes and hours."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import QPoint, Qt
from PySide6.QtWidgets import QApplication

from torchyard_gui.bookings.calendar.time_axis import STEP_S, snapped
from torchyard_gui.bookings.gestures.ground import Ground
from torchyard_gui.widgets.gesture import Gesture

Book = Callable[[tuple[str, ...], float, float], None]


class DrawBooking(Gesture):
    """Begins as a press on free time; a press alone puts the keyboard there (`clicked`)."""

    cursor = Qt.CursorShape.CrossCursor

    def __init__(
        self,
        ground: Ground,
        position: QPoint,
        book: Book,
        refused: Callable[[str], None],
        clicked: Callable[[QPoint], None],
    ):
        self._ground = ground
        self._from = position
        self._book = book
        self._refused = refused
        self._clicked = clicked
        self._anchor = ground.lane_at(position)
        self._begin = ground.second_at(position)
        self._drawn: tuple[tuple[str, ...], float, float] | None = None
        self._reason = ""

    def move(self, position: QPoint) -> None:
        if self._anchor is None:
            return
        if self._drawn is None and (position - self._from).manhattanLength() < QApplication.startDragDistance():
            return
        lane = self._ground.lane_at(position) or self._anchor
        top, bottom = sorted((self._anchor.top, lane.top))
        gpus = tuple(row.slots[0].id for row in self._ground.lane_rows() if top <= row.top <= bottom)
        first, last = sorted((snapped(self._begin), snapped(self._ground.second_at(position))))
        drawn = gpus, first, max(last, first + STEP_S)
        if drawn != self._drawn:
            # Asked once a quarter of an hour and lane, not once a pixel.
            self._drawn = drawn
            self._reason = self._ground.hold(*drawn, None, position)

    def finish(self, position: QPoint) -> None:
        self.move(position)
        self._ground.let_go()
        if self._drawn is None:
            self._clicked(position)
        elif self._reason:
            self._refused(self._reason)
        else:
            self._book(*self._drawn)

    def cancel(self) -> None:
        self._ground.let_go()

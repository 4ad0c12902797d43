"""Paints the calendar without proposals, previews and the keyboard cursor, and caches the result."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import QRect, QRectF
from PySide6.QtGui import QPainter, QPixmap
from PySide6.QtWidgets import QAbstractScrollArea

from torchyard_gui.bookings.calendar.background_painting import paint_folded, paint_grid, paint_now_line, paint_unbooked
from torchyard_gui.bookings.calendar.block_painting import BlockPainter
from torchyard_gui.bookings.calendar.display_list import DisplayList
from torchyard_gui.bookings.calendar.header_painting import paint_corner, paint_days, paint_hosts
from torchyard_gui.bookings.calendar.time_axis import Axis
from torchyard_gui.theme.tokens import METRICS as M


class CalendarPainter:
    """Paints the calendar. Labels and corners are cached: `forget` must be called when the theme changes."""

    def __init__(self) -> None:
        self.blocks = BlockPainter()

    def forget(self) -> None:
        self.blocks.forget()

    def paint(
        self,
        painter: QPainter,
        picture: DisplayList,
        axis: Axis,
        rect: QRectF,
        scrolled: int,
        *,
        selected: str = "",
        lifted: str = "",
        marked: range = range(0),
    ) -> None:
        """Paints the part of the view within `rect`.

        Args:
            selected: ID of the selected booking.
            lifted: ID of the booking that is being moved or resized.
            marked: Lanes that the keyboard cursor covers.
        """
        down = M.days_header - scrolled
        body = QRectF(M.lane_header, M.days_header, rect.right() - M.lane_header, rect.bottom() - M.days_header)
        body = body.intersected(rect)
        if not body.isEmpty():
            painter.save()
            painter.setClipRect(body)
            painter.translate(M.lane_header, down)
            clip = body.translated(-M.lane_header, -down)
            paint_grid(painter, picture, axis, clip)
            paint_folded(painter, picture, axis, clip)
            self.blocks.paint(painter, picture, axis, clip, selected, lifted)
            paint_unbooked(painter, picture, axis, clip)
            paint_now_line(painter, picture, axis, clip)
            painter.restore()
        head = QRectF(0, M.days_header, M.lane_header, rect.bottom() - M.days_header).intersected(rect)
        if not head.isEmpty():
            painter.save()
            painter.setClipRect(head)
            painter.translate(0, down)
            paint_hosts(painter, picture, head.translated(0, -down), marked)
            painter.restore()
        if rect.top() < M.days_header:
            across = QRectF(0, 0, rect.right() - M.lane_header, M.days_header)
            painter.save()
            painter.translate(M.lane_header, 0)
            painter.setClipRect(across)
            paint_days(painter, picture, axis, across)
            painter.restore()
            paint_corner(painter, picture, axis, QRectF(0, 0, M.lane_header, M.days_header))


class SnapshotCache:
    """Cache of the painted viewport. `forget` must be called whenever the painted content changes.

    The viewport is looked up on each use, because the Python wrapper of a viewport that Qt created can become invalid.
    """

    def __init__(self, view: QAbstractScrollArea, paint: Callable[[QPainter, QRectF], None]):
        self._view = view
        self._paint = paint
        self._pixmap: QPixmap | None = None

    def forget(self) -> None:
        self._pixmap = None

    def draw(self, painter: QPainter, rect: QRect) -> None:
        """Draws the part of the viewport within `rect`."""
        ratio = self._view.devicePixelRatioF()
        if self._pixmap is None:
            self._pixmap = self._taken(ratio)
        x, y, width, height = (int(side * ratio) for side in (rect.x(), rect.y(), rect.width(), rect.height()))
        painter.drawPixmap(rect, self._pixmap, QRect(x, y, width, height))

    def _taken(self, ratio: float) -> QPixmap:
        pixmap = QPixmap(self._view.viewport().size() * ratio)
        pixmap.setDevicePixelRatio(ratio)
        painter = QPainter(pixmap)
        self._paint(painter, QRectF(self._view.viewport().rect()))
        painter.end()
        return pixmap

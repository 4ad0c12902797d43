"""Geometry of the calendar: positions of lanes and hours in the view, and scrolling."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date

from PySide6.QtCore import QPoint, QPointF
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QAbstractScrollArea, QWidget

from torchyard_gui.bookings.calendar.display_list import DisplayList
from torchyard_gui.bookings.calendar.keyboard_cursor import Cursor
from torchyard_gui.bookings.calendar.lanes import Row
from torchyard_gui.bookings.calendar.overlays import Box, boxes_of
from torchyard_gui.bookings.calendar.time_axis import Axis, Span, axis_of
from torchyard_gui.theme.tokens import METRICS as M


class CalendarGeometry(QAbstractScrollArea):
    """Scroll area whose width is divided among the shown days. The lanes scroll vertically below the day headings.

    Positions are in viewport pixels.
    """

    def __init__(self, parent: QWidget | None = None):
        super().__init__(parent)
        self.picture = DisplayList()
        self.span: Span = "week"
        self.day = date.today()
        self.axis: Axis = axis_of("week", self.day, "UTC", 700)

    def set_picture(self, picture: DisplayList) -> None:
        is_new_zone = picture.zone != self.axis.zone
        self.picture = picture
        if is_new_zone:
            self._measure()
        self._fit_scroll_bar()

    def set_days(self, span: Span, day: date) -> None:
        self.span, self.day = span, day
        self._measure()

    def second_at(self, position: QPoint) -> float:
        return self.axis.second_at(position.x() - M.lane_header)

    def lane_at(self, position: QPoint) -> Row | None:
        return self.picture.lanes.lane_at(self._content_y(position))

    def row_at(self, position: QPoint) -> Row | None:
        return self.picture.lanes.row_at(self._content_y(position))

    def lane_rows(self) -> Sequence[Row]:
        return self.picture.lanes.lanes

    def boxes(self, gpus: Sequence[str], start: float, end: float) -> tuple[Box, ...]:
        """Returns the boxes of the lanes of `gpus` from `start` to `end`. Adjacent lanes are merged into one box."""
        return boxes_of(gpus, start, end, self.picture.lanes)

    def gpus_of(self, cursor: Cursor) -> tuple[str, ...]:
        rows = self.picture.lanes.lanes
        return tuple(rows[number].slots[0].id for number in cursor.lanes if number < len(rows))

    def in_lanes(self, position: QPoint) -> QPointF:
        """Converts a viewport position to a position relative to the top left corner of the first row and day."""
        return QPointF(position.x() - M.lane_header, self._content_y(position))

    def show_rows(self, top: int, bottom: int) -> None:
        """Scrolls until the rows from `top` to `bottom` are visible.

        A scroll upwards also leaves space for a host heading above the rows.
        """
        bar, room = self.verticalScrollBar(), self.viewport().height() - M.days_header
        if top < bar.value():
            bar.setValue(max(0, top - M.host_row))
        elif bottom > bar.value() + room:
            bar.setValue(min(bottom - room, top))

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._measure()
        self._fit_scroll_bar()

    def _content_y(self, position: QPoint) -> float:
        return position.y() - M.days_header + self.verticalScrollBar().value()

    def _measure(self) -> None:
        width = max(self.viewport().width() - M.lane_header, 100)
        self.axis = axis_of(self.span, self.day, self.picture.zone, width)

    def _fit_scroll_bar(self) -> None:
        room = self.viewport().height() - M.days_header
        bar = self.verticalScrollBar()
        bar.setPageStep(max(room, 1))
        bar.setSingleStep(M.lane)
        bar.setRange(0, max(0, self.picture.lanes.height + 1 - room))

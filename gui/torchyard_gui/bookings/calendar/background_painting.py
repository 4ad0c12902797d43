"""Paints the layers below and above the bookings: the grid, folded hosts, GPU use without a booking, and the current
time.
"""

from __future__ import annotations

from datetime import timedelta

from PySide6.QtCore import QPointF, QRectF, Qt
from PySide6.QtGui import QPainter, QPen

from torchyard_core.booking.intervals import Interval, merge
from torchyard_gui.bookings import labels
from torchyard_gui.bookings.calendar.display_list import DisplayList
from torchyard_gui.bookings.calendar.time_axis import Axis
from torchyard_gui.theme.theme import theme

WIDTH_NOW = 12.0
"""Minimum width in pixels of the mark for a GPU that is in use now."""
REPORTED_WITHIN = timedelta(minutes=15)
LEFT = Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter


def paint_grid(painter: QPainter, picture: DisplayList, axis: Axis, clip: QRectF) -> None:
    """Paints the day columns and the rows. The painter's origin is the top left corner of the first row."""
    look = theme()
    painter.fillRect(clip, look.color("s0"))
    bottom = min(clip.bottom(), float(picture.lanes.height))
    if bottom <= clip.top():
        return
    lanes = QRectF(clip.left(), clip.top(), clip.width(), bottom - clip.top())
    painter.fillRect(lanes, look.color("s2"))
    now_x = axis.x_of(picture.now.timestamp()) if picture.now else 0.0
    painter.fillRect(lanes.intersected(QRectF(0, lanes.top(), now_x, lanes.height())), look.color("s1"))
    for number, day in enumerate(axis.days):
        if day.date.weekday() >= 5:
            column = QRectF(number * axis.column, lanes.top(), axis.column, lanes.height())
            painter.fillRect(lanes.intersected(column), look.color("s1"))
    painter.setPen(look.pen("hair"))
    for row in picture.lanes.between(clip.top(), bottom):
        if row.kind == "host":
            painter.fillRect(QRectF(clip.left(), row.top, clip.width(), row.height), look.color("s0"))
        faint = row.is_lane and row is not picture.lanes.rows[-1]
        painter.setPen(QPen(look.color("hair", 0.9 if look.is_dark else 0.55)) if faint else look.pen("hair"))
        painter.drawLine(QPointF(clip.left(), row.bottom - 0.5), QPointF(clip.right(), row.bottom - 0.5))
    painter.setPen(look.pen("hair"))
    for number in range(1, len(axis.days)):
        x = round(number * axis.column) + 0.5
        painter.drawLine(QPointF(x, lanes.top()), QPointF(x, lanes.bottom()))


def paint_folded(painter: QPainter, picture: DisplayList, axis: Axis, clip: QRectF) -> None:
    """Paints, for each folded host, how many slots are booked over time, as bars with labels such as `3 of 4`."""
    look = theme()
    since, until = axis.starts[0], axis.days[-1].end
    painter.setFont(look.font("tiny"))
    for row in picture.lanes.between(clip.top(), clip.bottom()):
        if row.kind != "folded":
            continue
        room = row.height - 12
        for interval, count in picture.folded.get(row.host, ()):
            start, end = interval.start.timestamp(), interval.end.timestamp()
            if end <= since or start >= until:
                continue
            x, right = axis.x_of(start), axis.x_of(end)
            height = max(4.0, room * count / len(row.slots))
            box = QRectF(x, row.bottom - 6 - height, max(right - x, 1.0), height)
            painter.fillRect(box, look.color("edge_used", 0.30 if look.is_dark else 0.26))
            text = labels.translate("Bookings", "{count} of {all}").format(count=count, all=len(row.slots))
            if right - x >= 40:
                painter.setPen(look.pen("text"))
                painter.drawText(QRectF(x + 6, row.top, right - x - 8, row.height), LEFT, text)


def unbooked_boxes(picture: DisplayList, axis: Axis, gpu: str) -> list[QRectF]:
    """Returns a rectangle for each interval in which a GPU was used without a booking. If the GPU is in use now, the
    last rectangle extends to the current time.
    """
    row = picture.lanes.lane_of.get(gpu)
    if row is None:
        return []
    times = list(picture.usage.unbooked.get(gpu, ()))
    use = picture.used_now.get(gpu)
    if use is not None and picture.now is not None:
        # If a record ended shortly before `use.since`, it belongs to the same use, because agents report only every few
        # minutes.
        begin = min((time.start for time in times if time.end >= use.since - REPORTED_WITHIN), default=use.since)
        begin = min(begin, use.since, picture.now - timedelta(seconds=1))
        times = merge([*times, Interval(begin, picture.now)])
    since, until = axis.starts[0], axis.days[-1].end
    boxes = []
    for interval in times:
        start, end = interval.start.timestamp(), interval.end.timestamp()
        if end <= since or start >= until:
            continue
        is_now = use is not None and interval.end == picture.now
        right = axis.x_of(end)
        width = max(right - axis.x_of(start) - 1, WIDTH_NOW if is_now else 4.0)
        left = max(right - width, 0.0) if is_now else axis.x_of(start)
        boxes.append(QRectF(left + 0.5, row.top + 3.5, width, row.height - 7))
    return boxes


def paint_unbooked(painter: QPainter, picture: DisplayList, axis: Axis, clip: QRectF) -> None:
    """Paints dashed amber boxes at times when GPUs are used without a booking."""
    pen = QPen(theme().color("wait"), 1)
    pen.setDashPattern([3, 2])
    painter.setBrush(Qt.BrushStyle.NoBrush)
    for gpu in picture.usage.unbooked.keys() | picture.used_now.keys():
        for box in unbooked_boxes(picture, axis, gpu):
            if box.bottom() <= clip.top() or box.top() >= clip.bottom():
                continue
            painter.setPen(pen)
            painter.drawRoundedRect(box, 2, 2)
            painter.fillRect(QRectF(box.left(), box.bottom() - 1, box.width(), 2), theme().color("edge_used"))


def paint_now_line(painter: QPainter, picture: DisplayList, axis: Axis, clip: QRectF) -> None:
    """Paints the current time as a line 1 px wide."""
    if picture.now is None or not axis.starts[0] <= picture.now.timestamp() < axis.days[-1].end:
        return
    x = round(axis.x_of(picture.now.timestamp()))
    bottom = min(clip.bottom(), float(picture.lanes.height))
    painter.fillRect(QRectF(x, clip.top(), 1, bottom - clip.top()), theme().color("text", 0.75))

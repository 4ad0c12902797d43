"""Paints the headings: days and hours at the top, hosts and lanes at the left, and the time zone in the corner."""

from __future__ import annotations

from datetime import timedelta

from PySide6.QtCore import QPointF, QRectF, Qt
from PySide6.QtGui import QPainter

from torchyard_gui.bookings import labels
from torchyard_gui.bookings.calendar.display_list import DisplayList
from torchyard_gui.bookings.calendar.lanes import Row
from torchyard_gui.bookings.calendar.time_axis import Axis, local_day, zone_mark
from torchyard_gui.theme.icons import paint_state, pixmap
from torchyard_gui.theme.theme import theme
from torchyard_gui.theme.tokens import METRICS as M
from torchyard_gui.widgets.elided_text import host_elide_mode

Align = Qt.AlignmentFlag
LEFT = Align.AlignLeft | Align.AlignVCenter


def paint_days(painter: QPainter, picture: DisplayList, axis: Axis, rect: QRectF) -> None:
    """Paints the headings of days and hours. The painter's origin is the top left corner of the first day."""
    look = theme()
    painter.fillRect(rect, look.color("s1"))
    today = local_day(picture.now, axis.zone) if picture.now else None
    narrow = axis.column < 72
    for number, day in enumerate(axis.days):
        x = number * axis.column
        painter.setPen(look.pen("hair"))
        if number:
            painter.drawLine(QPointF(round(x) + 0.5, 0), QPointF(round(x) + 0.5, rect.height()))
        text = str(day.date.day) if narrow else labels.day_name(day.date, "ddd d")
        painter.setFont(look.font("strong"))
        box = QRectF(x + (4 if narrow else 12), 5, axis.column - 6, 18)
        if day.date == today:
            pill = QRectF(box.left() - 6, 4, painter.fontMetrics().horizontalAdvance(text) + 12, 20)
            _pill(painter, pill, "accent")
            painter.setPen(look.pen("on_accent"))
        else:
            painter.setPen(look.pen("text" if day.date.weekday() < 5 else "text2"))
        painter.drawText(box, LEFT, text)
        if narrow:
            painter.setFont(look.font("tiny"))
            painter.setPen(look.pen("text3"))
            painter.drawText(QRectF(x + 4, 25, axis.column - 4, 16), LEFT, labels.day_name(day.date, "ddd")[:2])
    _hours(painter, picture, axis)
    painter.setPen(look.pen("hair"))
    painter.drawLine(QPointF(rect.left(), rect.bottom() - 0.5), QPointF(rect.right(), rect.bottom() - 0.5))


def _hours(painter: QPainter, picture: DisplayList, axis: Axis) -> None:
    look = theme()
    painter.setFont(look.font("tiny"))
    painter.setPen(look.pen("text3"))
    now = picture.now
    shown = now is not None and axis.starts[0] <= now.timestamp() < axis.days[-1].end
    now_x = axis.x_of(now.timestamp()) if now is not None and shown else -1000.0
    for x, text in axis.ticks():
        if abs(x - now_x) > 32:
            painter.drawText(QRectF(x - 16, 25, 32, 16), Align.AlignCenter, text)
    if now is None or not shown or axis.column < 72:
        return
    text = labels.clock(now, axis.zone)
    width = painter.fontMetrics().horizontalAdvance(text) + 14
    pill = QRectF(round(min(max(now_x - width / 2, 0), axis.width - width)), 25, width, 17)
    _pill(painter, pill, "text")
    painter.setPen(look.pen("s2"))
    painter.drawText(pill, Align.AlignCenter, text)


def _pill(painter: QPainter, rect: QRectF, token: str) -> None:
    painter.setRenderHint(QPainter.RenderHint.Antialiasing)
    painter.setPen(Qt.PenStyle.NoPen)
    painter.setBrush(theme().brush(token))
    painter.drawRoundedRect(rect, rect.height() / 2, rect.height() / 2)
    painter.setRenderHint(QPainter.RenderHint.Antialiasing, False)


def paint_corner(painter: QPainter, picture: DisplayList, axis: Axis, rect: QRectF) -> None:
    """Paints the time zone in the corner."""
    look = theme()
    painter.fillRect(rect, look.color("s1"))
    painter.setFont(look.font("tiny"))
    painter.setPen(look.pen("text3"))
    text = zone_mark(picture.now or axis.since + timedelta(hours=12), axis.zone)
    painter.drawText(rect.adjusted(16, 23, -4, 0), LEFT, text)
    painter.setPen(look.pen("hair"))
    painter.drawLine(rect.bottomLeft() + QPointF(0, -0.5), rect.bottomRight() + QPointF(0, -0.5))
    painter.drawLine(rect.topRight() + QPointF(-0.5, 0), rect.bottomRight() + QPointF(-0.5, 0))


def paint_hosts(painter: QPainter, picture: DisplayList, clip: QRectF, marked: range) -> None:
    """Paints the headings of hosts and lanes.

    The origin of the painter is the top left corner of the first row. `marked` contains the indexes of the lanes under
    the keyboard cursor.
    """
    look = theme()
    painter.fillRect(clip, look.color("s1"))
    marked_lanes = {picture.lanes.lanes[number].top for number in marked if number < len(picture.lanes.lanes)}
    for row in picture.lanes.between(clip.top(), clip.bottom()):
        if row.is_lane:
            _lane(painter, row, row.top in marked_lanes)
        else:
            _host(painter, picture, row)
    painter.setPen(look.pen("hair"))
    x = M.lane_header - 0.5
    painter.drawLine(QPointF(x, clip.top()), QPointF(x, clip.bottom()))


def _lane(painter: QPainter, row: Row, is_marked: bool) -> None:
    look = theme()
    slot = row.slots[0]
    name = slot.node or (labels.translate("Bookings", "CPU") if slot.index is None else f"GPU {slot.index}")
    painter.setFont(look.font("small_strong" if is_marked else "small"))
    painter.setPen(look.pen("text" if is_marked else "text2"))
    room = QRectF(44, row.top, M.lane_header - 48, row.height)
    name = painter.fontMetrics().elidedText(name, host_elide_mode(name), int(room.width()))
    painter.drawText(room, LEFT, name)


def _host(painter: QPainter, picture: DisplayList, row: Row) -> None:
    look = theme()
    painter.setPen(look.pen("hair"))
    for y in (row.top, row.bottom) if row.kind == "host" else (row.bottom,):
        if y:
            painter.drawLine(QPointF(0, y - 0.5), QPointF(M.lane_header, y - 0.5))
    middle = row.top + row.height / 2
    chevron = "chevron-right" if row.kind == "folded" else "chevron-down"
    ratio = painter.device().devicePixelRatioF()
    painter.drawPixmap(QPointF(9, middle - 7), pixmap(chevron, 14, "text2", ratio))
    paint_state(painter, QRectF(26, middle - 6, 12, 12), picture.states.get(row.host, "unknown"))
    painter.setFont(look.font("strong"))
    painter.setPen(look.pen("text"))
    room = M.lane_header - 44 - 6
    name = painter.fontMetrics().elidedText(row.host, host_elide_mode(row.host), room)
    painter.drawText(QRectF(44, row.top, room, row.height), LEFT, name)
    left = 44 + painter.fontMetrics().horizontalAdvance(name) + 8
    painter.setFont(look.font("tiny"))
    aside = picture.host_notes.get(row.host, "")
    rest = M.lane_header - 4 - left
    if aside and rest > 24:
        painter.setPen(look.pen("text3"))
        text = painter.fontMetrics().elidedText(aside, Qt.TextElideMode.ElideRight, int(rest))
        painter.drawText(QRectF(left, row.top, rest, row.height), LEFT, text)

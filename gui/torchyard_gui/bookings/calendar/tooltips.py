"""Descriptions of a booking or a cursor position, for tool tips, drags and screen readers."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QPoint, QRect, Qt
from PySide6.QtWidgets import QAbstractScrollArea, QLabel

from torchyard_core.booking.model import Booking, Slot
from torchyard_gui.bookings import labels
from torchyard_gui.bookings.calendar.blocks import Block
from torchyard_gui.bookings.calendar.display_list import DisplayList
from torchyard_gui.bookings.calendar.keyboard_cursor import Cursor
from torchyard_gui.bookings.calendar.time_axis import utc
from torchyard_gui.bridge.bookings_model import UseNow
from torchyard_gui.widgets.text_labels import set_ink


def booking_tooltip(booking: Booking, picture: DisplayList, zone: str) -> str:
    """Returns a booking's details with the time zone. The first line is the title of the booking."""
    now = picture.now or booking.start
    lines = [
        booking.title,
        f"{labels.owner_name(booking.owner, picture.person)} · {labels.slots_count(booking.gpus)}",
        f"{labels.time_span(booking.start, booking.until, zone, now)} ({zone})",
        labels.state_text(booking, now),
        picture.notes.get(booking.id, ""),
        booking.purpose,
    ]
    return "\n".join(filter(None, lines))


def use_tooltip(slot: Slot, use: UseNow, picture: DisplayList, zone: str) -> str:
    """Returns a tool tip such as `gpu-a:0 is in use without a booking: kim, since 09:12 or earlier`."""
    since = labels.clock(use.since, zone)
    if use.users:
        text = labels.translate("Bookings", "{gpu} is in use without a booking: {users}, since {time} or earlier")
    else:
        text = labels.translate("Bookings", "{gpu} is in use without a booking since {time} or earlier")
    return text.format(gpu=slot.name, users=use.users, time=since)


def times_tooltip(gpus: Sequence[str], start: float, end: float, picture: DisplayList, zone: str) -> str:
    """Returns a summary such as `Today 10:00 – 15:00 · 5 h · 2 GPUs`."""
    now = picture.now or utc(start)
    when = labels.time_span(utc(start), utc(end), zone, now)
    return f"{when} · {labels.duration_text(end - start)} · {labels.slots_count(gpus)}"


def cursor_description(
    cursor: Cursor, gpus: Sequence[str], block: Block | None, picture: DisplayList, zone: str
) -> str:
    """Returns a description of the keyboard cursor and the booking under it."""
    lanes = [picture.lanes.lanes[number].slots[0].name for number in cursor.lanes]
    text = f"{', '.join(lanes)}: {times_tooltip(gpus, cursor.start, cursor.end, picture, zone)}"
    return f"{text}. {booking_tooltip(block.booking, picture, zone)}" if block is not None else text


WIDEST = 380


class DragTooltip(QLabel):
    """A tool tip that is drawn over the calendar and over an open drawer. It does not receive mouse events."""

    def __init__(self, calendar: QAbstractScrollArea):
        super().__init__(calendar)
        self._calendar = calendar
        self.setProperty("popup", True)
        self.setTextFormat(Qt.TextFormat.PlainText)
        self.setWordWrap(True)
        self.setAttribute(Qt.WidgetAttribute.WA_TransparentForMouseEvents)
        self.setContentsMargins(8, 5, 8, 5)
        self.setAutoFillBackground(True)
        self.hide()

    def say(self, text: str, at: QPoint, *, is_bad: bool) -> None:
        self.setText(text)
        set_ink(self, "fail" if is_bad else "")
        ground, viewport = self._calendar.window(), self._calendar.viewport()
        if self.parentWidget() is not ground:
            self.setParent(ground)  # A child of the calendar would lie below a drawer that covers the calendar.
        room = QRect(viewport.mapTo(ground, QPoint()), viewport.size())
        at = viewport.mapTo(ground, at)
        width = min(self.fontMetrics().boundingRect(0, 0, WIDEST, 400, 0, text).width() + 26, WIDEST + 26)
        self.setFixedWidth(width)
        self.setFixedHeight(self.heightForWidth(width))
        place = at + QPoint(14, 18)
        place.setX(max(room.left(), min(place.x(), room.right() - width - 4)))
        if place.y() + self.height() > room.bottom():
            place.setY(at.y() - self.height() - 10)
        self.move(place)
        self.show()
        self.raise_()

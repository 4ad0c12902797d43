"""A booking, and a place in the calendar, in words: for tool tips, for what is dragged, and for screen readers."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QPoint, Qt
from PySide6.QtWidgets import QLabel, QWidget

from torchyard_core.booking.model import Booking
from torchyard_gui.bookings import labels
from torchyard_gui.bookings.calendar.blocks import Block
from torchyard_gui.bookings.calendar.display_list import Picture
from torchyard_gui.bookings.calendar.keyboard_cursor import Cursor
from torchyard_gui.bookings.calendar.time_axis import utc


def told_of(booking: Booking, picture: Picture, zone: str) -> str:
    """A booking in full, with its zone; its title is the first line."""
    now = picture.now or booking.start
    lines = [
        booking.title,
        f"{labels.name_of(booking.owner, picture.person)} · {labels.slots_count(booking.gpus)}",
        f"{labels.span_of(booking.start, booking.until, zone, now)} ({zone})",
        labels.state_of(booking, now),
        picture.notes.get(booking.id, ""),
        booking.purpose,
    ]
    return "\n".join(filter(None, lines))


def told_times(gpus: Sequence[str], start: float, end: float, picture: Picture, zone: str) -> str:
    """`Today 10:00 – 15:00 · 5 h · 2 GPUs`."""
    now = picture.now or utc(start)
    when = labels.span_of(utc(start), utc(end), zone, now)
    return f"{when} · {labels.length(end - start)} · {labels.slots_count(gpus)}"


def told_cursor(cursor: Cursor, gpus: Sequence[str], block: Block | None, picture: Picture, zone: str) -> str:
    """Where the keyboard is, and the booking that is there."""
    lanes = [picture.lanes.lanes[number].slots[0].name for number in cursor.lanes]
    text = f"{', '.join(lanes)}: {told_times(gpus, cursor.start, cursor.end, picture, zone)}"
    return f"{text}. {told_of(block.booking, picture, zone)}" if block is not None else text


WIDEST = 320


class DragTip(QLabel):
    """Lies over the calendar, within it, and is transparent to the mouse."""

    def __init__(self, ground: QWidget):
        super().__init__(ground)
        self._ground = ground
        self.setProperty("popup", True)
        self.setTextFormat(Qt.TextFormat.PlainText)
        self.setWordWrap(True)
        self.setAttribute(Qt.WidgetAttribute.WA_TransparentForMouseEvents)
        self.setContentsMargins(8, 5, 8, 5)
        self.setAutoFillBackground(True)
        self.hide()

    def say(self, text: str, at: QPoint, *, is_bad: bool) -> None:
        self.setText(text)
        self.setProperty("ink", "fail" if is_bad else "")
        self.style().unpolish(self)
        self.style().polish(self)
        room = self._ground.rect()
        width = min(self.fontMetrics().boundingRect(0, 0, WIDEST, 400, 0, text).width() + 26, WIDEST + 26)
        self.setFixedWidth(width)
        self.setFixedHeight(self.heightForWidth(width))
        place = at + QPoint(14, 18)
        place.setX(max(0, min(place.x(), room.right() - width - 4)))
        if place.y() + self.height() > room.bottom():
            place.setY(at.y() - self.height() - 10)
        self.move(place)
        self.show()
        self.raise_()

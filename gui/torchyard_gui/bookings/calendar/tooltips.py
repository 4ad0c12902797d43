"""A booking, and a place in the calendar, in words: for tool tips, for what is dragged, and for screen readers."""

from __future__ import annotations

from collections.abc import Sequence

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

"""A booking, and a place in the calendar, in words: for tool tips, for what is dragged, and for screen readers."""

from __future__ import annotations

from collections.abc import Sequence

from torchyard_core.booking.model import Booking
from torchyard_gui.bookings import words
from torchyard_gui.bookings.blocks import Block
from torchyard_gui.bookings.picture import Picture
from torchyard_gui.bookings.selection import Cursor
from torchyard_gui.bookings.time_axis import utc


def told_of(booking: Booking, picture: Picture, zone: str) -> str:
    """A booking in full, with its zone; its title is the first line."""
    now = picture.now or booking.start
    lines = [
        booking.title,
        f"{words.name_of(booking.owner, picture.person)} · {words.slots_count(booking.gpus)}",
        f"{words.span_of(booking.start, booking.until, zone, now)} ({zone})",
        words.state_of(booking, now),
        picture.notes.get(booking.id, ""),
        booking.purpose,
    ]
    return "\n".join(filter(None, lines))


def told_times(gpus: Sequence[str], start: float, end: float, picture: Picture, zone: str) -> str:
    """`Today 10:00 – 15:00 · 5 h · 2 GPUs`."""
    now = picture.now or utc(start)
    when = words.span_of(utc(start), utc(end), zone, now)
    return f"{when} · {words.length(end - start)} · {words.slots_count(gpus)}"


def told_cursor(cursor: Cursor, gpus: Sequence[str], block: Block | None, picture: Picture, zone: str) -> str:
    """Where the keyboard is, and the booking that is there."""
    lanes = [picture.lanes.lanes[number].slots[0].name for number in cursor.lanes]
    text = f"{', '.join(lanes)}: {told_times(gpus, cursor.start, cursor.end, picture, zone)}"
    return f"{text}. {told_of(block.booking, picture, zone)}" if block is not None else text

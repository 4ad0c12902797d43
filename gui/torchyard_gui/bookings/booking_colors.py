"""The colours of bookings: each owner has one of five colours, and the own bookings have the accent colour."""

from __future__ import annotations

from zlib import crc32

OWNER_COLORS = 5


def color_number(owner: str) -> int:
    """Returns the number of an owner's colour, from 0 to 4. It is the same on every desktop."""
    return crc32(owner.encode(), 55) % OWNER_COLORS


def color_token(owner: str, *, own: bool) -> str:
    """Returns the theme's name for the colour of an owner's bookings."""
    return "accent" if own else f"person{color_number(owner) + 1}"

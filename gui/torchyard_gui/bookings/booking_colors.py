"""The colours of bookings: the user's own bookings have the accent colour, and each other owner has one of five
colours.
"""

from __future__ import annotations

from zlib import crc32

OWNER_COLORS = 5


def color_number(owner: str) -> int:
    """Returns the number of an owner's colour, from 0 to 4. The number is the same on every desktop."""
    return crc32(owner.encode(), 55) % OWNER_COLORS


def color_token(owner: str, *, own: bool) -> str:
    """Returns the name of the colour token for an owner's bookings."""
    return "accent" if own else f"person{color_number(owner) + 1}"

"""The current state of each slot: booked, in use, or free (neither booked nor in use)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from torchyard_core.booking.model import Booking, Slot


@dataclass(frozen=True)
class SlotNow:
    """A slot, its current booking, its next booking, and its current users (None if unknown)."""

    slot: Slot
    booked: Booking | None
    following: Booking | None
    users: tuple[str, ...] | None

    @property
    def is_free(self) -> bool | None:
        """Whether the slot is neither booked nor in use; None if it is not booked and its use is unknown."""
        if self.booked is not None:
            return False
        return None if self.users is None else not self.users

    def to_json(self) -> dict[str, Any]:
        """Returns the slot as JSON.

        The keys are "id", "name", "free", "booked" and "next"; each booking has the keys "id", "owner", "title",
        "start" and "end".
        """
        return {
            "id": self.slot.id,
            "name": self.slot.name,
            "free": self.is_free,
            "booked": _short(self.booked),
            "next": _short(self.following),
        }


def slots_now(
    slots: Iterable[Slot], bookings: Sequence[Booking], users: Mapping[str, Collection[str]], now: datetime
) -> tuple[SlotNow, ...]:
    """Returns the state of each slot, sorted by host and GPU.

    `users` maps slot IDs to users; slots whose use is unknown are missing.
    """
    by_slot: dict[str, list[Booking]] = {}
    for booking in sorted(bookings, key=lambda one: one.start):
        if booking.is_live and booking.end > now:
            for gpu in booking.gpus:
                by_slot.setdefault(gpu, []).append(booking)
    found = []
    for slot in sorted(slots, key=Slot.sort_key):
        mine = by_slot.get(slot.id, [])
        running = next((one for one in mine if one.start <= now), None)
        following = next((one for one in mine if one.start > now), None)
        who = tuple(users[slot.id]) if slot.id in users else None
        found.append(SlotNow(slot, running, following, who))
    return tuple(found)


def _short(booking: Booking | None) -> dict[str, Any] | None:
    return None if booking is None else booking.to_json(("id", "owner", "title", "start", "end"))

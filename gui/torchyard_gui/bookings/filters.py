"""Filters the calendar by hosts, GPU models, owners and text. Does not depend on Qt."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torchyard_core.booking.model import Booking, Slot
from torchyard_gui.bookings.calendar.lanes import gpu_model


@dataclass(frozen=True)
class Filter:
    """Conditions of the filter; an empty condition matches everything.

    Lanes of other hosts and models are hidden. Bookings that have another owner or lack the text are drawn pale rather
    than hidden, because their GPUs are still booked.
    """

    hosts: frozenset[str] = frozenset()
    models: frozenset[str] = frozenset()
    persons: frozenset[str] = frozenset()
    text: str = ""

    @property
    def is_empty(self) -> bool:
        return not (self.hosts or self.models or self.persons)

    def slots(self, slots: Iterable[Slot]) -> tuple[Slot, ...]:
        """Returns the slots of the matching hosts and models."""
        return tuple(
            slot
            for slot in slots
            if (not self.hosts or slot.host in self.hosts) and (not self.models or gpu_model(slot) in self.models)
        )

    def matches(self, booking: Booking) -> bool:
        """Returns whether the owner matches, and every word of the text occurs in the title, purpose or owner."""
        if self.persons and booking.owner not in self.persons:
            return False
        words = self.text.casefold().split()
        searched = f"{booking.title} {booking.purpose} {booking.owner}".casefold()
        return all(word in searched for word in words)

"""The use case "book GPUs": once, repeatedly, or for each event of an imported calendar."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from torchyard_core.booking.errors import Refused
from torchyard_core.booking.model import Booking, Draft, Slot
from torchyard_core.booking.slots import slots_of
from torchyard_core.errors import TorchyardError
from torchyard_core.next_steps import CheckHosts
from torchyard_core.topology.host_facts import HostFacts

if TYPE_CHECKING:
    from torchyard_core.booking.store import BookingStore, SeriesBooked


class BookGpus:
    """Books GPUs in one calendar."""

    def __init__(self, store: BookingStore, known: Sequence[HostFacts] = ()):
        """`known`: hosts of the fleet, whose GPUs are added to the calendar."""
        self._store = store
        if known:
            store.remember_slots(slots_of(known, is_private=store.is_private))

    def slots(self) -> tuple[Slot, ...]:
        """Every slot that can be booked. Raises TorchyardError where there is none yet."""
        slots = self._store.slots()
        if not slots:
            raise TorchyardError(
                "no host of the fleet was looked at yet, so there is no GPU to book", code="no_slots", hint=CheckHosts()
            )
        return slots

    def book(self, draft: Draft, rule: str = "", *, free_ones: bool = False) -> SeriesBooked:
        """Books a draft, or a series by an RFC 5545 `rule`. Raises Refused or StoreUnavailable, and books nothing then.

        `free_ones` books the possible occurrences of a series, and returns the others as missed.
        """
        from torchyard_core.booking.store import SeriesBooked

        if rule:
            return self._store.book_series(draft, rule, free_ones=free_ones)
        return SeriesBooked("", (self._store.book(draft),), ())

    def book_each(self, drafts: Iterable[Draft]) -> tuple[list[Booking], list[tuple[Draft, Refused]]]:
        """Returns the bookings that were made, and the refused drafts with reasons."""
        made: list[Booking] = []
        refused: list[tuple[Draft, Refused]] = []
        for draft in drafts:
            try:
                made.append(self._store.book(draft))
            except Refused as why:
                refused.append((draft, why))
        return made, refused

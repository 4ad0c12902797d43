"""The use case "book GPUs": books GPUs once, repeatedly, or for each event of an imported calendar."""

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
    """Books GPUs in a calendar."""

    def __init__(self, store: BookingStore, known: Sequence[HostFacts] = ()):
        """Creates the use case.

        Args:
            store: The calendar.
            known: Facts of the fleet's hosts. Their GPUs are added to the calendar.
        """
        self._store = store
        if known:
            store.remember_slots(slots_of(known, is_private=store.is_private))

    def slots(self) -> tuple[Slot, ...]:
        """Returns all slots that can be booked. Raises TorchyardError if the calendar has no slots."""
        slots = self._store.slots()
        if not slots:
            raise TorchyardError(
                "no host of the fleet was checked yet, so there is no GPU to book", code="no_slots", hint=CheckHosts()
            )
        return slots

    def book(self, draft: Draft, rule: str = "", *, free_ones: bool = False) -> SeriesBooked:
        """Books a draft, or a series of bookings if an RFC 5545 `rule` is given.

        With `free_ones`, occurrences of a series that cannot be booked are skipped and returned as missed.

        Raises:
            Refused, StoreUnavailable: Nothing was booked.
        """
        from torchyard_core.booking.store import SeriesBooked

        if rule:
            return self._store.book_series(draft, rule, free_ones=free_ones)
        return SeriesBooked("", (self._store.book(draft),), ())

    def book_each(self, drafts: Iterable[Draft]) -> tuple[list[Booking], list[tuple[Draft, Refused]]]:
        """Books each draft. Returns the bookings, and the refused drafts with the reasons."""
        made: list[Booking] = []
        refused: list[tuple[Draft, Refused]] = []
        for draft in drafts:
            try:
                made.append(self._store.book(draft))
            except Refused as why:
                refused.append((draft, why))
        return made, refused

"""Write transactions of a store.

A transaction is repeated after a conflict with another one. A transaction that frees GPUs also processes the waitlist.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from sqlalchemy import Connection

from torchyard_core.booking.errors import StoreUnavailable
from torchyard_core.booking.model import Booking
from torchyard_core.booking.search.conflict import Clash
from torchyard_core.booking.store.conflict_queries import ConflictQueries
from torchyard_core.booking.store.database_engine import Overlap
from torchyard_core.booking.store.store_session import StoreSession
from torchyard_core.booking.store.waitlist import Waitlist

TRIES = 5
Result = TypeVar("Result")


@dataclass
class WriteTransactions:
    _session: StoreSession
    _conflicts: ConflictQueries
    _waitlist: Waitlist
    _served: deque[Booking] = field(default_factory=deque)
    """Bookings that were made for the waitlist, and not yet returned by `serve_waiting`."""

    def run(
        self, attempt: Callable[[Connection], Result], *, except_booking: str | None = None, frees: bool = False
    ) -> Result:
        """Runs a write transaction, and repeats it after an Overlap with another transaction.

        Args:
            attempt: The function that writes.
            except_booking: The booking to change. This booking does not count towards the quota in the search for
                alternatives.
            frees: Whether the transaction may release GPUs, in which case the waitlist is processed.

        Raises:
            Clash: Other bookings prevent the change. The error includes the nearest free alternatives, if any.
            StoreUnavailable: The transaction failed TRIES times because of conflicts with other transactions.
        """
        for _ in range(TRIES):
            try:
                with self._session.transaction(writes=True) as connection:
                    result = attempt(connection)
                    served = self._waitlist.serve(connection) if frees else ()
                self._served.extend(served)
                return result
            except Overlap:
                continue
            except Clash as clash:
                with self._session.transaction() as connection:
                    raise self._conflicts.with_nearest(connection, clash, except_booking) from None
        raise StoreUnavailable(
            f"{self._session.place} is too busy: others were quicker {TRIES} times", hint="Try again."
        )

    def serve_waiting(self) -> tuple[Booking, ...]:
        """Processes the waitlist.

        Returns:
            The bookings made for entries of the waitlist since the last call, by any transaction of this store.
        """
        self.run(lambda connection: None, frees=True)
        served = []
        while self._served:
            served.append(self._served.popleft())
        return tuple(served)

"""What a launch needs of a calendar, whoever keeps it: `booking` stands above this folder, and fits itself to this.

That is why the layers need no exception: what is decided about bookings is in `booking.launch_rules`, and a launch
only knows this protocol.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from torchyard_core.launch.checks.check import Check
from torchyard_core.launch.confirmations import Ask
from torchyard_core.launch.rank_assignment import Plan
from torchyard_core.topology.host_facts import HostFacts


@dataclass(frozen=True)
class Reserved:
    """What a launch goes by once the calendar was asked."""

    checks: tuple[Check, ...] = ()
    """Lines of the checklist, named `booking`."""
    booking_id: str | None = None
    """The booking that holds the run's GPUs."""
    owner: str = ""
    """Whose it is; without a booking, who launches, as the calendar calls them."""
    until: datetime | None = None
    """When that booking ends."""
    stop_at_end: bool = False
    """Whether the run is then to be stopped, whoever follows."""
    start_at: datetime | None = None
    """When the run is to begin; None for at once."""


class Reserving(Protocol):
    """The calendar's part in one launch (see `torchyard_core.booking.launch_booking`)."""

    def choices(self, known: Sequence[HostFacts]) -> Sequence[Sequence[HostFacts]]:
        """The hosts as the launch may use them, the best way first: GPUs that it may not have count as busy."""

    def refuse(self, planned: Plan) -> None:
        """Raises why a plan that takes GPUs of others is not to be; `planned` could start but for the calendar."""

    def settle(self, planned: Plan, run_id: str, name: str, ask: Ask) -> Reserved:
        """Finds the booking that the plan stands on, or makes one. Raises RunFailed, or what the calendar refuses."""

    def begun(self) -> None:
        """The run is on its way."""

    def take_back(self) -> None:
        """The launch came to nothing: what `settle` changed is undone."""

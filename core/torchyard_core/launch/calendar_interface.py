"""Interface of the calendar that a launch uses. `torchyard_core.booking`, a higher layer, implements it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from torchyard_core.launch.checks.check import Check
from torchyard_core.launch.confirmations import Ask
from torchyard_core.launch.rank_assignment import Plan
from torchyard_core.topology.host_facts import HostFacts


@dataclass(frozen=True)
class BookingOptions:
    """The options of a launch that concern the calendar."""

    length: timedelta | None = None
    """`--book 4h`: the length of the booking. With None, GPUs are booked only if the launch needs a booking."""
    start_at: datetime | None = None
    """`--at`: the start of the run; None for now."""
    booking_id: str | None = None
    """`--booking`: the ID of the booking on whose GPUs the run starts."""
    usual_length: timedelta | None = None
    """The length that is proposed if the launch needs a booking.

    With None, the length is derived from the last successful run of the same name.
    """


@dataclass(frozen=True)
class Reservation:
    """The calendar's decision about a launch."""

    checks: tuple[Check, ...] = ()
    """The calendar's lines for the checklist, all of the check `booking`."""
    booking_id: str | None = None
    """The booking that holds the run's GPUs."""
    owner: str = ""
    """Owner of the booking. If there is no booking, the launching user's name in the calendar."""
    until: datetime | None = None
    """End of the booking; None if there is no booking."""
    stop_at_end: bool = False
    """Whether the run is stopped at the end of the booking even if no other booking follows."""
    start_at: datetime | None = None
    """Start of the run; None for now."""


@dataclass(frozen=True)
class ChosenBooking:
    """The user's booking on which a run starts."""

    id: str
    slots: tuple[str, ...]
    start: datetime
    end: datetime
    title: str = ""
    owner: str = ""


class LaunchCalendar(Protocol):
    """The calendar operations of a launch, implemented in `torchyard_core.booking.launch_booking`."""

    def chosen_booking(self) -> ChosenBooking | None:
        """Returns the booking that `--booking` names, or None without this option.

        Raises an error of the calendar if the booking cannot be used.
        """

    def node_bookings(self, prefix: str) -> Sequence[ChosenBooking]:
        """Returns the user's current and future bookings of nodes, sorted by start.

        The IDs of the nodes begin with `prefix`. Returns () if there is no calendar or the calendar cannot be reached.
        """

    def use_nodes(self, booking: ChosenBooking) -> None:
        """Selects the booking of nodes that the run uses. `begun` marks it as active if its start has passed."""

    def choices(self, known: Sequence[HostFacts]) -> Sequence[Sequence[HostFacts]]:
        """Returns alternative sets of hosts in order of preference. The launch plans on the first set that suffices.

        GPUs that the launch may not use are marked as busy.
        """

    def refuse(self, planned: Plan) -> None:
        """Raises an error if the plan uses GPUs that the calendar does not allow this launch to use."""

    def settle(self, planned: Plan, run_id: str, name: str, ask: Ask) -> Reservation:
        """Finds or makes the booking for a plan. Raises RunFailed or an error of the calendar if this fails."""

    def begun(self) -> None:
        """Records that the run was submitted."""

    def take_back(self) -> None:
        """Undoes the changes of `settle`, after the launch has failed."""

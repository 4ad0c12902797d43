"""Conflicts of a draft with other bookings: the GPUs, the bookings, the times, and free alternatives."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from torchyard_core.booking.errors import Refused
from torchyard_core.booking.model import Booking, Draft, Slot, rfc3339
from torchyard_core.booking.search.slot_search import Fit
from torchyard_core.booking.slots import format_slots
from torchyard_core.formatting import counted, span


@dataclass(frozen=True)
class Clashing:
    """A conflicting booking, and which of the requested GPUs it holds."""

    booking: Booking
    gpus: tuple[str, ...]


@dataclass(frozen=True)
class Conflict:
    """A draft with the bookings that conflict with it, and the nearest free alternatives if they were searched for."""

    wanted: Draft
    clashing: tuple[Clashing, ...]
    nearest: tuple[Fit, ...] = ()

    def sentence(self, slots: Sequence[Slot] = (), me: str = "") -> str:
        """Formats the conflict as sentences.

        Example: `gpu-b:2 is booked by kim ('digits') from Mon 23 Nov 09:00 to 17:00 (Europe/Berlin).`
        """
        parts = [
            f"{format_slots(one.gpus, slots)} {'is' if len(one.gpus) == 1 else 'are'} booked by "
            f"{'you' if me and one.booking.owner == me else one.booking.owner} ({one.booking.title!r}) "
            f"{span(one.booking.start, one.booking.end, self.wanted.zone)}"
            for one in self.clashing[:3]
        ]
        if len(self.clashing) > 3:
            more = len(self.clashing) - 3
            parts.append(f"and {counted(more, 'more booking')} {'is' if more == 1 else 'are'} in the way")
        return "; ".join(parts) + f" ({self.wanted.zone})."

    def way_out(self, slots: Sequence[Slot] = ()) -> str:
        """Formats up to 3 nearest free alternatives: `Free nearby: gpu-b:2-3 from Mon 23 Nov 17:00 to 23:00.`"""
        if not self.nearest:
            return "Nothing like it is free within the days that can be booked."
        fits = "; ".join(
            f"{format_slots(fit.gpus, slots)} {span(fit.start, fit.end, self.wanted.zone)}" for fit in self.nearest[:3]
        )
        return f"Free nearby: {fits}."

    def as_error(self, slots: Sequence[Slot] = (), me: str = "") -> Clash:
        return Clash(self, self.sentence(slots, me), hint=self.way_out(slots))

    def to_json(self, slots: Sequence[Slot] = ()) -> dict[str, Any]:
        """Returns the conflict as JSON.

        The format is {"clashing": [{"booking", "gpus", "names"}], "nearest": [{"gpus", "names", "start", "end",
        "host"}]}.
        """
        return {
            "clashing": [
                {"booking": one.booking.to_json(), "gpus": list(one.gpus), "names": format_slots(one.gpus, slots)}
                for one in self.clashing
            ],
            "nearest": [fit_to_json(fit, slots) for fit in self.nearest],
        }


class Clash(Refused):
    """Raised when other bookings hold requested GPUs at the requested time. `conflict` has the details."""

    def __init__(self, conflict: Conflict, message: str, hint: str = ""):
        super().__init__(message, code="conflict", hint=hint)
        self.conflict = conflict


def fit_to_json(fit: Fit, slots: Iterable[Slot]) -> dict[str, Any]:
    return {
        "gpus": list(fit.gpus),
        "names": format_slots(fit.gpus, slots),
        "start": rfc3339(fit.start),
        "end": rfc3339(fit.end),
        "host": fit.host,
    }

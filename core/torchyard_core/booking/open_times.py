"""What the rules leave of a search: when GPUs are closed to a person counts as taken, so that who looks for free places
is offered none that would then be refused."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta

from torchyard_core.booking.find_slot import HORIZON, Busy, Wish
from torchyard_core.booking.intervals import Interval
from torchyard_core.booking.model import Slot
from torchyard_core.booking.rules import Rules, Window, binding_windows, outside


def within_rules(wish: Wish, rules: Rules, now: datetime) -> Wish:
    """The wish from now on, and no further ahead than bookings may be made."""
    earliest = max(wish.earliest, now)
    latest = wish.latest or earliest + HORIZON
    if rules.furthest_days is not None:
        latest = min(latest, now + timedelta(days=rules.furthest_days))
    return replace(wish, earliest=earliest, latest=latest)


def taken_or_closed(busy: Busy, slots: Iterable[Slot], within: Interval, rules: Rules, person: str) -> Busy:
    """What is taken of each GPU or closed to that person, in that time."""
    if not rules.windows or within.is_empty:
        return busy
    closed: dict[tuple[Window, ...], list[Interval]] = {}
    both = dict(busy)
    for slot in slots:
        binding = tuple(binding_windows(slot, rules, person))
        if not binding:
            continue
        if binding not in closed:  # the GPUs of a host mostly share their windows
            closed[binding] = outside(within, binding)
        both[slot.id] = [*busy.get(slot.id, ()), *closed[binding]]
    return both

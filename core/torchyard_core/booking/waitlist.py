"""The waitlist: who waits for which GPUs, served in order as GPUs become free."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from torchyard_core.booking.find_slot import Busy, Fit, Wish, find_slots
from torchyard_core.booking.intervals import Interval
from torchyard_core.booking.model import Slot, from_rfc3339, rfc3339
from torchyard_core.booking.open_times import taken_or_closed, within_rules
from torchyard_core.booking.rules import Rules


@dataclass(frozen=True)
class Waiting:
    """One who waits. `state`: waiting, booked (then `booking_id`), withdrawn."""

    id: str
    owner: str
    title: str
    wish: Wish
    zone: str
    created: datetime
    state: str = "waiting"
    booking_id: str | None = None


def in_order(
    waiting: Iterable[Waiting], slots: Sequence[Slot], busy: Busy, now: datetime, rules: Rules
) -> tuple[tuple[Waiting, Fit], ...]:
    """Who gets what, first come first served. A place that somebody earlier gets is taken for everybody after; one that
    the rules keep closed to somebody is kept for nobody.
    """
    taken = {gpu: list(intervals) for gpu, intervals in busy.items()}
    served: list[tuple[Waiting, Fit]] = []
    for one in sorted(waiting, key=lambda one: (one.created, one.id)):
        if one.state != "waiting":
            continue
        wish = within_rules(one.wish, rules, now)
        open_until = Interval(wish.earliest, wish.latest or wish.earliest)
        free_for = taken_or_closed(taken, [slot for slot in slots if wish.takes(slot)], open_until, rules, one.owner)
        for fit in find_slots(wish, slots, free_for, limit=1):
            served.append((one, fit))
            for gpu in fit.gpus:
                taken.setdefault(gpu, []).append(Interval(fit.start, fit.end))
    return tuple(served)


def wish_to_json(wish: Wish) -> dict[str, Any]:
    latest = rfc3339(wish.latest) if wish.latest else None
    return {
        **wish.__dict__,
        "length": wish.length.total_seconds(),
        "earliest": rfc3339(wish.earliest),
        "latest": latest,
        "hosts": list(wish.hosts),
        "gpus": list(wish.gpus),
    }


def wish_from_json(data: Mapping[str, Any]) -> Wish:
    return Wish(
        **{
            **data,
            "length": timedelta(seconds=data["length"]),
            "earliest": from_rfc3339(data["earliest"]),
            "latest": from_rfc3339(data["latest"]) if data["latest"] else None,
            "hosts": tuple(data["hosts"]),
            "gpus": tuple(data["gpus"]),
        }
    )

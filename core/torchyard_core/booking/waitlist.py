"""Entries of the waitlist, and the order in which they are fulfilled."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from torchyard_core.booking.intervals import Interval
from torchyard_core.booking.model import Slot, from_rfc3339, is_cpu_id, rfc3339
from torchyard_core.booking.rules.search_limits import Allowance, closed_starts, taken_or_closed, within_rules
from torchyard_core.booking.rules.team_rules import Rules
from torchyard_core.booking.search.slot_search import Busy, Fit, Wish, find_slots
from torchyard_core.booking.time_parser import END_OF_TIME
from torchyard_core.booking.zone_weeks import by_week


@dataclass(frozen=True)
class Waiting:
    """An entry of the waitlist. `state` is waiting, booked (with `booking_id`) or withdrawn."""

    id: str
    owner: str
    title: str
    wish: Wish
    zone: str
    created: datetime
    state: str = "waiting"
    booking_id: str | None = None


def assign_places(
    waiting: Iterable[Waiting],
    slots: Sequence[Slot],
    busy: Busy,
    now: datetime,
    rules: Rules,
    hours: Mapping[str, Mapping[datetime, float]],
) -> tuple[tuple[Waiting, Fit], ...]:
    """Returns the entries that can be fulfilled, each with GPUs and a time, in the order in which entries were made.

    GPUs that the rules do not allow for an entry remain available to the following entries.

    Args:
        busy: Booked intervals of each slot.
        hours: Booked GPU-hours of each owner, by the start of the week.
    """
    taken = {gpu: list(intervals) for gpu, intervals in busy.items()}
    has = {person: dict(weeks) for person, weeks in hours.items()}
    served: list[tuple[Waiting, Fit]] = []
    for one in sorted(waiting, key=lambda one: (one.created, one.id)):
        if one.state != "waiting":
            continue
        wish = within_rules(one.wish, rules, now)
        open_until = Interval(wish.earliest, wish.latest or wish.earliest)
        fitting = [slot for slot in slots if wish.takes(slot)]
        free_for = taken_or_closed(taken, fitting, open_until, rules, one.owner)
        weeks = has.setdefault(one.owner, {})
        closed = closed_starts(wish, fitting, rules, one.owner, Allowance(weeks, now, one.zone))
        for fit in find_slots(wish, fitting, free_for, 1, closed):
            served.append((one, fit))
            booked = Interval(fit.start, fit.end)
            for gpu in fit.gpus:
                taken.setdefault(gpu, []).append(booked)
            for week, seconds in by_week(booked, rules.zone).items():
                weeks[week] = weeks.get(week, 0.0) + seconds * sum(not is_cpu_id(gpu) for gpu in fit.gpus) / 3600
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


def wish_from_json(data: Any) -> Wish:
    """Parses the output of `wish_to_json`. Raises ValueError for other data."""
    try:
        wish = Wish(
            **{
                **data,
                "length": timedelta(seconds=data["length"]),
                "earliest": from_rfc3339(data["earliest"]),
                "latest": from_rfc3339(data["latest"]) if data["latest"] else None,
                "hosts": tuple(data["hosts"]),
                "gpus": tuple(data["gpus"]),
            }
        )
    except (KeyError, TypeError, OverflowError) as error:
        raise ValueError(f"the wish is none: {error}") from None
    texts = (wish.model, *wish.hosts, *wish.gpus)
    numbers = (wish.count, wish.min_memory_gb)
    if (
        not all(isinstance(one, str) for one in texts)
        or not all(isinstance(one, int | float) and 0 <= one < 1e6 for one in numbers)
        or not isinstance(wish.count, int)
        or wish.count < 1
        or not isinstance(wish.one_host, bool)
        or not timedelta(minutes=1) <= wish.length <= timedelta(days=36500)
        or any(moment.year >= END_OF_TIME for moment in (wish.earliest, wish.latest or wish.earliest))
    ):
        raise ValueError("the wish has values of the wrong kind or size")
    return wish

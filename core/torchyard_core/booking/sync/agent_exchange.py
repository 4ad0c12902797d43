"""Bookings and agents: hosts are handed what is booked, and tell what they saw while no desktop was there.

Part of `app.sync_calendar`. What agents saw at night is applied by the first desktop that connects: idle bookings are
freed, the waitlist is served.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from torchyard_core.booking.model import Booking, IdleEvidence, Login, Use, from_rfc3339, persons_of, rfc3339
from torchyard_core.booking.store import BookingStore
from torchyard_core.errors import TorchyardError
from torchyard_core.fleet.calendar_push import collect_evidence, hand_over, open_links
from torchyard_core.fleet.fleet import Fleet

LOOK_BACK = timedelta(days=3)

Told = Mapping[str, Mapping[str, Any]]
"""Answers to `bookings.evidence`, by host."""


@dataclass(frozen=True)
class Exchanged:
    """What came of one exchange."""

    hosts: tuple[str, ...] = ()
    """Those that were spoken with."""
    problems: Mapping[str, TorchyardError] = field(default_factory=dict)
    freed: tuple[Booking, ...] = ()
    """Bookings that were let go since their GPUs stayed idle."""
    served: tuple[Booking, ...] = ()
    """Made for those who waited."""


def exchange_with_agents(fleet: Fleet, store: BookingStore, names: Iterable[str] | None = None) -> Exchanged:
    """Takes in what the connected hosts saw, applies it, and hands them the calendar as it is then.

    Only hosts that are connected take part: nobody is called. Raises StoreAway, and what else the store says.
    """
    links = open_links(fleet, names)
    if not links:
        return Exchanged()
    now = store.now()
    told = collect_evidence(links, rfc3339(now - LOOK_BACK))
    uses = uses_told(told, store.logins())
    if uses:
        store.record_use(uses)
    running = [one for one in store.bookings(now, now + timedelta(seconds=1), live=True) if one.is_running(now)]
    evidence = combine(told, running, store.person)
    if evidence:
        store.record_idle(evidence)
    freed = store.apply_idle()
    served = store.serve_waiting()
    now = store.now()
    problems = hand_over(links, store.snapshot_revision(now), rfc3339(now), store.snapshot)
    return Exchanged(tuple(links), problems, freed, served)


def combine(told: Told, bookings: Iterable[Booking], reporter: str = "") -> tuple[IdleEvidence, ...]:
    """What all hosts together saw of each booking: it is idle since the last of its GPUs is.

    A booking of which a GPU was seen by nobody is left out. Words that are not understood count as not said.
    """
    seen: dict[str, list[tuple[set[str], datetime, datetime]]] = {}
    for answer in told.values():
        for one in answer.get("idle", ()):
            try:
                times = from_rfc3339(str(one["since"])), from_rfc3339(str(one["seen"]))
                seen.setdefault(str(one["booking"]), []).append((set(map(str, one["gpus"])), *times))
            except (ValueError, KeyError, TypeError):
                continue
    found = []
    for booking in bookings:
        parts = seen.get(booking.id, [])
        if parts and set(booking.gpus) <= set().union(*(gpus for gpus, _, _ in parts)):
            since = max(begin for _, begin, _ in parts)
            last = min(end for _, _, end in parts)
            found.append(IdleEvidence(booking.id, since, max(since, last), reporter))
    return tuple(found)


def uses_told(told: Told, logins: Sequence[Login]) -> tuple[Use, ...]:
    """Who used what, by the hosts' account. The person is whom the run's record names, else whose login it is.

    Several who share a login stand together, as "one of: kim, lee"; a login that no table names stands for itself, and
    is told with its host where a person has that name.
    """
    uses = []
    for host, answer in told.items():
        for one in answer.get("uses", ()):
            try:
                start, end = from_rfc3339(str(one["start"])), from_rfc3339(str(one["end"]))
                gpu, user, run_id = str(one["gpu"]), str(one["user"]), str(one["run_id"]) or None
                persons = persons_of(logins, host, user) or ((f"{user} on {host}",) if user else ())
                person = str(one["person"])
            except (ValueError, KeyError, TypeError):
                continue
            is_named = persons not in ((), (user,), (f"{user} on {host}",))
            if not person or (is_named and person not in persons):
                person = persons[0] if len(persons) == 1 else f"one of: {', '.join(persons)}" if persons else ""
            if end > start and gpu:
                uses.append(Use(gpu, host, person, start, end, run_id))
    return tuple(uses)

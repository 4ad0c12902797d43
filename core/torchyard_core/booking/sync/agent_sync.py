"""Synchronisation of the calendar with agents: hosts receive the bookings and report the use of their GPUs.

`app.sync_calendar` uses this module. Evidence that agents collect while no desktop is connected is applied by the next
desktop that connects, which then releases idle bookings and processes the waitlist.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from torchyard_core.booking.model import Booking, IdleEvidence, from_rfc3339, rfc3339
from torchyard_core.booking.store import BookingStore
from torchyard_core.booking.usage_attribution import HostReports, reported_uses
from torchyard_core.errors import TorchyardError
from torchyard_core.fleet.calendar_push import collect_evidence, open_links, push_calendar
from torchyard_core.fleet.fleet import Fleet

LOOK_BACK = timedelta(days=3)


@dataclass(frozen=True)
class AgentSync:
    """The result of one exchange with the agents."""

    hosts: tuple[str, ...]
    """The connected hosts."""
    problems: Mapping[str, TorchyardError]
    """The errors of hosts that did not accept the calendar, by host."""
    released: tuple[Booking, ...]
    """Bookings that were released because their GPUs were idle."""
    served: tuple[Booking, ...]
    """Bookings made for the waitlist."""


def sync_agents(fleet: Fleet, store: BookingStore) -> AgentSync:
    """Records the hosts' reports, releases idle bookings, processes the waitlist, and sends the calendar to the hosts.

    Only hosts that are already connected take part. Raises errors of the store, such as StoreUnavailable.
    """
    links = open_links(fleet)
    now = store.now()
    reports = collect_evidence(links, rfc3339(now - LOOK_BACK))
    uses = reported_uses(reports, store.logins())
    if uses:
        store.record_use(uses)
    running = [one for one in store.bookings(now, now + timedelta(seconds=1), live=True) if one.is_running(now)]
    evidence = combine_evidence(reports, running, store.person)
    if evidence:
        store.record_idle(evidence)
    released, served = store.apply_idle(), store.serve_waiting()
    now = store.now()
    problems = push_calendar(links, store.snapshot_revision(now), rfc3339(now), store.snapshot)
    return AgentSync(tuple(links), problems, released, served)


def combine_evidence(reports: HostReports, bookings: Iterable[Booking], reporter: str = "") -> tuple[IdleEvidence, ...]:
    """Combines the evidence of all hosts about each booking. A booking is idle once all of its GPUs are idle.

    Bookings with a GPU that no host has reported as idle are omitted. Invalid entries are ignored.
    """
    seen: dict[str, list[tuple[set[str], datetime, datetime]]] = {}
    for answer in reports.values():
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

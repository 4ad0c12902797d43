"""Exchange between the calendar and agents: hosts get the bookings, and report the use of their GPUs.

Every connected desktop does it with each host when it connects, every ten minutes, and when bookings change. The first
desktop applies what agents saw meanwhile: idle bookings are freed, and the waitlist is served.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from torchyard_core.booking.model import Booking, IdleEvidence, Login, Use, from_rfc3339, persons_of, rfc3339
from torchyard_core.booking.store import BookingStore
from torchyard_core.errors import TorchyardError
from torchyard_core.fleet.calendar_push import collect_evidence, hand_over, open_links
from torchyard_core.fleet.daemon_client import Link
from torchyard_core.fleet.fleet import Fleet

EVERY_S = 600.0
AFTER_TROUBLE_S = 30.0
LOOK_EVERY_S = 2.0
"""Interval at which new connections are looked for."""
LOOK_BACK = timedelta(days=3)

HostReports = Mapping[str, Mapping[str, Any]]
"""Responses to `bookings.evidence`, by host."""


@dataclass(frozen=True)
class Exchanged:
    """The result of one exchange."""

    hosts: tuple[str, ...] = ()
    """The hosts that took part."""
    problems: Mapping[str, TorchyardError] = field(default_factory=dict)
    freed: tuple[Booking, ...] = ()
    """Bookings that were released because their GPUs were idle."""
    served: tuple[Booking, ...] = ()
    """Bookings made for the waitlist."""


def exchange_with_agents(fleet: Fleet, store: BookingStore, names: Iterable[str] | None = None) -> Exchanged:
    """Collects and applies the evidence of the connected hosts, then sends them the calendar.

    No connection is opened. Raises errors of the store, such as StoreAway.
    """
    links = open_links(fleet, names)
    if not links:
        return Exchanged()
    now = store.now()
    reports = collect_evidence(links, rfc3339(now - LOOK_BACK))
    uses = uses_told(reports, store.logins())
    if uses:
        store.record_use(uses)
    running = [one for one in store.bookings(now, now + timedelta(seconds=1), live=True) if one.is_running(now)]
    evidence = combine(reports, running, store.person)
    if evidence:
        store.record_idle(evidence)
    freed = store.apply_idle()
    served = store.serve_waiting()
    return Exchanged(tuple(links), hand_over(links, store.snapshot()), freed, served)


def combine(reports: HostReports, bookings: Iterable[Booking], reporter: str = "") -> tuple[IdleEvidence, ...]:
    """The evidence of all hosts on each booking, which is idle since the last of its GPUs is.

    Bookings with a GPU that no host reported on are left out. Invalid entries are ignored.
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


def uses_told(reports: HostReports, logins: Sequence[Login]) -> tuple[Use, ...]:
    """The reported use of GPUs. The person is the one in the run's record, else the one of the login.

    Persons who share a login are joined as "one of: kim, lee". An unknown login stands for itself, with its host if a
    person has that name.
    """
    uses = []
    for host, answer in reports.items():
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


class AgentExchange:
    """Exchanges with agents in a background thread."""

    def __init__(
        self,
        fleet: Fleet,
        store: Callable[[], BookingStore],
        on_exchanged: Callable[[Exchanged], None] = lambda exchanged: None,
        on_trouble: Callable[[TorchyardError], None] = lambda error: None,
    ):
        """Starts the thread, in which the callbacks are called.

        Args:
            store: May raise StoreAway; it is called again later.
        """
        self._fleet = fleet
        self._store = store
        self._on_exchanged = on_exchanged
        self._on_trouble = on_trouble
        self._wake = threading.Event()
        self._closed = False
        self._changed = True
        self._thread = threading.Thread(target=self._run, name="bookings-exchange", daemon=True)
        self._thread.start()

    def changed(self) -> None:
        """Starts an exchange soon, because bookings have changed."""
        self._changed = True
        self._wake.set()

    def close(self) -> None:
        """Ends the thread, after the exchange in progress."""
        self._closed = True
        self._wake.set()
        self._thread.join(5)

    def _run(self) -> None:
        known: dict[str, Link] = {}
        due = time.monotonic()
        while not self._closed:
            links = open_links(self._fleet)
            has_news = any(known.get(name) is not link for name, link in links.items())
            if self._changed or has_news or time.monotonic() >= due:
                self._changed = False
                due = time.monotonic() + (EVERY_S if self._exchange() else AFTER_TROUBLE_S)
                known = links
            self._wake.wait(LOOK_EVERY_S)
            self._wake.clear()

    def _exchange(self) -> bool:
        try:
            result = exchange_with_agents(self._fleet, self._store())
            if result.hosts:
                self._on_exchanged(result)
        except TorchyardError as error:  # also of on_exchanged; the next exchange tries again
            self._on_trouble(error)
            return False
        return not result.problems

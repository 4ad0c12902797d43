"""Mirrors the user's bookings of a cluster's nodes as reservations of Slurm, and their changes in both directions."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchyard_core.atomic_write import write_atomically
from torchyard_core.booking.errors import Refused
from torchyard_core.booking.model import Booking, is_of_cluster
from torchyard_core.engines.slurm.cluster_calendar import node_id
from torchyard_core.engines.slurm.cluster_link import ClusterHosts
from torchyard_core.engines.slurm.mirror_plan import Hold, Rebook, Reserve, Step, Unreserve, steps_between
from torchyard_core.errors import AgentRefused, TorchyardError
from torchyard_core.fleet.daemon_client import DaemonClient

if TYPE_CHECKING:
    from torchyard_core.booking.store import BookingStore

PAST, AHEAD = timedelta(days=2), timedelta(days=36_500)
"""The period of the bookings that are mirrored."""


@dataclass(frozen=True)
class Mirrored:
    """The result of mirroring one cluster."""

    cluster: str
    may_reserve: bool
    """Whether Slurm lets the user reserve nodes. If not, the user's bookings are not exclusive."""
    exclusive: frozenset[str]
    """IDs of the user's live bookings that have a reservation."""
    problems: Mapping[str, TorchyardError]
    """The error of each booking that could not be mirrored, by its ID."""


class ReservationMirror:
    """Mirrors the bookings of one cluster's nodes."""

    def __init__(self, hosts: ClusterHosts, store: BookingStore, folder: Path):
        """Creates the mirror. `folder` contains the state at the last agreement of both sides."""
        self._hosts = hosts
        self._store = store
        self._cluster = hosts.cluster.name
        self._file = folder / f"reservations-{self._cluster}.json"

    def run(self, *, install: bool = False) -> Mirrored:
        """Mirrors once. Raises HostError, AgentRefused, or errors of the store."""
        login = self._hosts.login(install=install)
        answer = login.call("reservations.read", {})
        now = self._store.now()
        own = self._own_bookings(now)
        reservations = {one: _hold_of(found) for one, found in answer["reservations"].items()}
        if not answer["may_reserve"]:
            return Mirrored(self._cluster, False, frozenset(own) & frozenset(reservations), {})
        live = {one: self._hold(booking) for one, booking in own.items() if booking.is_live}
        ended = {one for one, booking in own.items() if not booking.is_live}
        problems: dict[str, TorchyardError] = {}
        for step in steps_between(live, ended, reservations, self._base(), int(now.timestamp())):
            try:
                self._take(step, login, own)
            except (AgentRefused, Refused) as error:
                problems[step.booking_id] = error
        agreed = {
            one: self._hold(booking)
            for one, booking in self._own_bookings(now).items()
            if booking.is_live and one not in problems
        }
        self._keep_base(agreed)
        return Mirrored(self._cluster, True, frozenset(agreed), problems)

    def _own_bookings(self, now: datetime) -> dict[str, Booking]:
        every = self._store.bookings(now - PAST, now + AHEAD)
        prefix = node_id(self._cluster, "")
        return {
            one.id: one
            for one in every
            if one.owner == self._store.person and any(gpu.startswith(prefix) for gpu in one.gpus)
        }

    def _take(self, step: Step, login: DaemonClient, own: Mapping[str, Booking]) -> None:
        if isinstance(step, Reserve):
            _reserve(login, step.booking_id, step.hold)
        elif isinstance(step, Unreserve):
            login.call("reservations.release", {"booking_id": step.booking_id})
        elif isinstance(step, Rebook):
            try:
                self._rebook(own[step.booking_id], step.hold)
            except Refused:  # The calendar refuses what was changed in Slurm, so the reservation is changed back.
                _reserve(login, step.booking_id, self._hold(own[step.booking_id]))
        else:
            self._store.release(step.booking_id)

    def _rebook(self, booking: Booking, hold: Hold) -> None:
        has_begun = booking.start <= self._store.now()
        start = None if has_begun else datetime.fromtimestamp(hold.start, UTC)
        gpus = None if has_begun else [node_id(self._cluster, node) for node in hold.nodes]
        self._store.change(booking.id, start=start, end=datetime.fromtimestamp(hold.end, UTC), gpus=gpus)

    def _hold(self, booking: Booking) -> Hold:
        nodes = sorted(gpu.partition("/")[2] for gpu in booking.gpus if is_of_cluster(gpu))
        return Hold(tuple(nodes), int(booking.start.timestamp()), int(booking.until.timestamp()))

    def _base(self) -> dict[str, Hold]:
        with suppress(OSError, ValueError, TypeError, KeyError, AttributeError):
            return {one: _hold_of(found) for one, found in json.loads(self._file.read_text()).items()}
        return {}

    def _keep_base(self, agreed: Mapping[str, Hold]) -> None:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(self._file, json.dumps({one: asdict(hold) for one, hold in agreed.items()}), 0o600)


def _hold_of(found: Mapping[str, Any]) -> Hold:
    return Hold(tuple(sorted(map(str, found["nodes"]))), int(found["start"]), int(found["end"]))


def _reserve(login: DaemonClient, booking_id: str, hold: Hold) -> None:
    params = {"booking_id": booking_id, "nodes": list(hold.nodes), "start": hold.start, "end": hold.end}
    login.call("reservations.reserve", params)

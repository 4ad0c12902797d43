"""Mirrors the user's bookings of a cluster's nodes as reservations in Slurm, and changes in both directions."""

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
from torchyard_core.booking.time_parser import local_zone
from torchyard_core.engines.slurm.batch_script import RESERVATION
from torchyard_core.engines.slurm.cluster_calendar import node_id
from torchyard_core.engines.slurm.cluster_link import ClusterHosts
from torchyard_core.engines.slurm.mirror_plan import Hold, LetGo, Rebook, Reserve, Step, Unreserve, steps_between
from torchyard_core.errors import AgentRefused, TorchyardError
from torchyard_core.fleet.daemon_client import DaemonClient
from torchyard_core.formatting import span

if TYPE_CHECKING:
    from torchyard_core.booking.store import BookingStore

PAST, AHEAD = timedelta(days=2), timedelta(days=36_500)
"""How far before and after the current time bookings are mirrored."""


@dataclass(frozen=True)
class Mirrored:
    """The result of mirroring one cluster."""

    cluster: str
    may_reserve: bool
    """Whether Slurm allows the user to reserve nodes. If not, the user's bookings are not exclusive."""
    exclusive: frozenset[str]
    """IDs of the user's live bookings that have a reservation."""
    problems: Mapping[str, TorchyardError]
    """The error of each booking that could not be mirrored, by its ID."""
    deleted: tuple[Booking, ...] = ()
    """The bookings that were released or cancelled because their reservations were deleted in Slurm."""


class ReservationMirror:
    """Mirrors the bookings of one cluster's nodes."""

    def __init__(self, hosts: ClusterHosts, store: BookingStore, folder: Path):
        """Creates a mirror. A file in `folder` contains what bookings and reservations held when they last agreed."""
        self._hosts = hosts
        self._store = store
        self._cluster = hosts.cluster.name
        self._file = folder / f"reservations-{self._cluster}.json"

    def run(self, *, install: bool = False) -> Mirrored:
        """Mirrors all bookings and reservations once. Raises HostError, AgentRefused or errors of the booking store."""
        with self._hosts.mirroring:
            return self._run(install=install)

    def _run(self, *, install: bool) -> Mirrored:
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
        deleted = []
        for step in steps_between(live, ended, reservations, self._base(), int(now.timestamp())):
            try:
                self._take(step, login, own)
                if isinstance(step, LetGo):
                    deleted.append(own[step.booking_id])
            except AgentRefused as error:
                hit = _in_the_way(step, answer, reservations) if isinstance(step, Reserve) else ""
                message = f"{error.message.removeprefix(f'{error.host}: ')}{hit}"
                problems[step.booking_id] = AgentRefused(error.host, message, code=error.code, hint=error.advice)
            except Refused as error:
                problems[step.booking_id] = error
        agreed = {
            one: self._hold(booking)
            for one, booking in self._own_bookings(now).items()
            if booking.is_live and one not in problems
        }
        self._keep_base(agreed)
        return Mirrored(self._cluster, True, frozenset(agreed), problems, tuple(deleted))

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
            except Refused:  # The calendar does not allow the change that was made in Slurm, so it is reversed there.
                _reserve(login, step.booking_id, self._hold(own[step.booking_id]))
        else:
            with self._store.in_the_name_of(self._cluster):
                self._store.release(step.booking_id)

    def _rebook(self, booking: Booking, hold: Hold) -> None:
        has_begun = booking.start <= self._store.now()
        start = None if has_begun else datetime.fromtimestamp(hold.start, UTC)
        gpus = None if has_begun else [node_id(self._cluster, node) for node in hold.nodes]
        with self._store.in_the_name_of(self._cluster):
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


def _in_the_way(step: Reserve, answer: Mapping[str, Any], reservations: Mapping[str, Hold]) -> str:
    """Names a reservation that overlaps with the requested one: ` (n3 is reserved as maint until 18:00)`, or ""."""
    named = [(f"{RESERVATION}{one}", hold) for one, hold in reservations.items() if one != step.booking_id]
    named += [(str(one["name"]), _hold_of(one)) for one in answer.get("others", ())]
    for name, hold in named:
        nodes = sorted(set(hold.nodes) & set(step.hold.nodes))
        if nodes and hold.start < step.hold.end and step.hold.start < hold.end:
            start, end = (datetime.fromtimestamp(one, UTC) for one in (hold.start, hold.end))
            verb = "is" if len(nodes) == 1 else "are"
            return f" ({', '.join(nodes)} {verb} reserved as {name} {span(start, end, local_zone())})"
    return ""

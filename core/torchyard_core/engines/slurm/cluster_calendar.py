"""The calendar of a cluster: the lanes of its nodes, with reservations and running jobs. It is read-only."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from torchyard_core.booking.model import NODE_PREFIX, Booking, Slot, State
from torchyard_core.engines.slurm.batch_script import RESERVATION
from torchyard_core.engines.slurm.cluster_link import ClusterHosts
from torchyard_core.fleet.cluster import Cluster
from torchyard_core.formatting import counted

READ_TIMEOUT_S = 90.0
"""Timeout in seconds for reading the calendar. The agent may answer late, because it calls `squeue` only every 30 s."""
NO_LIMIT = timedelta(days=365)
"""The length with which the calendar shows a job that has no time limit."""


@dataclass(frozen=True)
class ClusterCalendar:
    """The lanes of a cluster's nodes, with the jobs and reservations on them at the time `as_of`."""

    cluster: str
    slots: tuple[Slot, ...]
    bookings: tuple[Booking, ...]
    """The reservations and running jobs, each in the form of a booking. `is_of_cluster` is true for their IDs."""
    as_of: datetime
    user: str = ""
    """The user's login on the cluster; "" if it is unknown."""

    def seen_by(self, person: str) -> ClusterCalendar:
        """Returns the calendar, with `person` shown as the owner of the jobs and reservations of `user`.

        If another login of the cluster has the name `person`, it is shown as `person on CLUSTER`.
        """
        if not self.user or self.user == person:
            return self
        names = {self.user: person, person: f"{person} on {self.cluster}"}
        owners = (", ".join(names.get(name, name) for name in one.owner.split(", ")) for one in self.bookings)
        renamed = tuple(
            one if one.owner == owner else replace(one, owner=owner)
            for one, owner in zip(self.bookings, owners, strict=True)
        )
        return replace(self, bookings=renamed)

    def without(self, mirrored: Collection[str]) -> tuple[Booking, ...]:
        """Returns the jobs and reservations, without the reservations that mirror the bookings with these IDs."""
        prefix = f"{NODE_PREFIX}{self.cluster}/reservation {RESERVATION}"
        return tuple(one for one in self.bookings if one.id.removeprefix(prefix) not in mirrored)

    def has_reservation(self, booking_id: str) -> bool:
        """Returns whether Slurm has a reservation for the booking."""
        return any(one.id.endswith(f"/reservation {RESERVATION}{booking_id}") for one in self.bookings)

    @classmethod
    def read(cls, hosts: ClusterHosts, *, install: bool = False) -> ClusterCalendar:
        """Asks the login node for the calendar. Raises HostError or AgentRefused if this fails."""
        cluster = hosts.cluster
        answer = hosts.login(install=install).call("cluster.calendar", {"partition": cluster.partition}, READ_TIMEOUT_S)
        return cls.from_answer(cluster, answer)

    @classmethod
    def from_answer(cls, cluster: Cluster, answer: Mapping[str, Any]) -> ClusterCalendar:
        """Converts the agent's answer to `cluster.calendar` to the calendar."""
        slots = node_slots(cluster, answer["nodes"])
        known = {slot.node: slot.id for slot in slots}
        found = []
        for job in answer["jobs"]:
            name = "" if str(job["name"]) in ("", "wrap") else f" ({job['name']})"
            found.append(_occupied(cluster, f"job {job['id']}", f"job {job['id']}{name}", str(job["user"]), job, known))
        for one in answer["reservations"]:
            title = f"reservation {one['name']}"
            found.append(_occupied(cluster, title, title, ", ".join(map(str, one["users"])) or "Slurm", one, known))
        as_of = datetime.fromtimestamp(float(answer["as_of"]), UTC)
        user = str(answer.get("user", ""))
        return cls(cluster.name, slots, tuple(one for one in found if one.gpus), as_of, user)


def node_id(cluster: str, node: str) -> str:
    """Returns the ID of the lane of a node."""
    return f"{NODE_PREFIX}{cluster}/{node}"


def node_slots(cluster: Cluster, nodes: Sequence[Mapping[str, Any]]) -> tuple[Slot, ...]:
    """Returns the lanes of nodes. `nodes` contains each node's name, GPUs by type, and number of CPUs."""
    names = ((index, str(node["name"]), _shape(node)) for index, node in enumerate(nodes))
    return tuple(Slot(node_id(cluster.name, name), cluster.name, index, shape) for index, name, shape in names)


def _shape(node: Mapping[str, Any]) -> str:
    """Formats the GPUs of a node as `4 × a100`, or its CPUs if it has no GPUs."""
    gpus = [f"{count} × {kind or 'GPU'}" for kind, count in node["gpus"].items()]
    return ", ".join(gpus) or counted(int(node["cpus"]), "CPU")


def _occupied(
    cluster: Cluster, key: str, title: str, owner: str, about: Mapping[str, Any], known: Mapping[str, str]
) -> Booking:
    start = datetime.fromtimestamp(int(about["start"]), UTC)
    end = datetime.fromtimestamp(int(about["end"]), UTC) if about["end"] is not None else start + NO_LIMIT
    nodes = tuple(sorted(known[node] for node in map(str, about["nodes"]) if node in known))
    note = f"on the Slurm cluster {cluster.name}, which only Slurm changes"
    purpose = note if about["end"] is not None else f"{note}; without a time limit"
    return Booking(
        f"{NODE_PREFIX}{cluster.name}/{key}",
        owner,
        title,
        purpose,
        nodes,
        start,
        end,
        "UTC",
        State.BOOKED,
        start,
        start,
    )

"""The lanes of clusters' nodes with reservations and running jobs, and the mirroring of bookings of nodes."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from PySide6.QtCore import QObject, QTimer, Signal

from torchyard_core.booking.model import NODE_PREFIX, Booking, is_of_cluster
from torchyard_core.errors import TorchyardError
from torchyard_gui.bridge.bookings_model import BookingsModel, CalendarState
from torchyard_gui.bridge.jobs import Job

if TYPE_CHECKING:
    from torchyard_core.engines.slurm.cluster_calendar import ClusterCalendar

READ_EVERY_MS = 60_000


class ClusterLanes(QObject):
    """The calendars of the fleet's clusters.

    They are read once a minute while they are watched, or while the user has live bookings of their nodes, which are
    mirrored first.
    """

    changed = Signal()

    def __init__(self, model: BookingsModel, parent: QObject | None = None):
        super().__init__(parent)
        self._model = model
        fleet = model.fleet
        self.calendars: dict[str, ClusterCalendar] = {}
        """The last known calendar of each cluster."""
        self.errors: dict[str, TorchyardError] = {}
        """The error of each cluster that has not answered the last request."""
        self._fleet = fleet
        self._reading: dict[str, Job] = {}
        self._is_watched = False
        self._mirrored: tuple[Booking, ...] = ()
        """The user's live bookings of nodes."""
        self._clock = QTimer(self, interval=READ_EVERY_MS)
        self._clock.timeout.connect(self.read)
        fleet.hosts_changed.connect(self._fleet_changed)

    def watch(self, on: bool) -> None:
        """Sets whether a calendar is visible."""
        was, self._is_watched = self._is_watched, on
        if on and not was:
            self._clock.start()
            self.read()
        elif not on and not self._mirrored:
            self._clock.stop()

    def close(self) -> None:
        """Stops reading; called when the window closes."""
        self._clock.stop()

    def bookings_changed(self) -> None:
        """Mirrors the user's bookings of nodes soon if they have changed."""
        seen = self._model.seen
        own = (one for one in seen.bookings if one.owner == seen.person and any(map(is_of_cluster, one.gpus)))
        before, self._mirrored = self._mirrored, tuple(one for one in own if one.is_live)
        if self._mirrored != before:
            if not self._clock.isActive():
                self._clock.start()
            self.read()

    def read(self) -> None:
        """Requests the calendar of each cluster that has no request in progress."""
        fleet = self._fleet
        for cluster in fleet.inventory.clusters:
            name = cluster.name
            if name in self._reading and not self._reading[name].is_finished:
                continue

            mirrors = any(_cluster_of(gpu) == name for gpu in self._own_gpus())

            def ask(name: str = name, mirrors: bool = mirrors) -> ClusterCalendar:
                from torchyard_core.engines.registry import mirror_reservations, read_cluster_calendar

                if mirrors:
                    mirror_reservations(fleet.fleet, name, self._model.store(), self._model.home.caches)
                return read_cluster_calendar(fleet.fleet, name)

            self._reading[name] = fleet.jobs.run(
                ask, partial(self._arrived, name), partial(self._failed, name), owner=self
            )

    def _own_gpus(self) -> set[str]:
        """Returns the GPUs and nodes in the user's bookings, including those that no longer hold them."""
        seen = self._model.seen
        return {gpu for booking in seen.bookings if booking.owner == seen.person for gpu in booking.gpus}

    def merged(self, seen: CalendarState) -> CalendarState:
        """Returns a calendar with the lanes of the clusters."""
        if not self.calendars:
            return seen
        known, booked = {slot.id for slot in seen.slots}, {booking.id for booking in seen.bookings}
        slots = tuple(slot for one in self.calendars.values() for slot in one.slots if slot.id not in known)
        bookings = tuple(booking for one in self.calendars.values() for booking in one.without(booked))
        return replace(seen, slots=(*seen.slots, *slots), bookings=(*seen.bookings, *bookings))

    def notes(self, seen: CalendarState) -> dict[str, str]:
        """Returns notes about bookings of nodes that are not exclusive, by the booking's ID."""
        found: dict[str, str] = {}
        if not self.calendars:
            return found
        for booking in seen.bookings:
            cluster = next((_cluster_of(gpu) for gpu in booking.gpus if is_of_cluster(gpu)), "")
            known = self.calendars.get(cluster)
            if known is not None and booking.is_live and not known.has_reservation(booking.id):
                found[booking.id] = self.tr("not exclusive: {cluster} has no reservation").format(cluster=cluster)
        return found

    def booking(self, booking_id: str) -> Booking | None:
        """Returns a job or reservation by its ID."""
        every = (booking for one in self.calendars.values() for booking in one.bookings)
        return next((booking for booking in every if booking.id == booking_id), None)

    def mark_of(self, cluster: str) -> str:
        """Returns the state mark of a cluster."""
        return "unknown" if cluster in self.errors else "ok"

    def _arrived(self, cluster: str, found: ClusterCalendar) -> None:
        before = self.calendars.get(cluster)
        if before is not None and before.bookings == found.bookings:
            found = replace(found, bookings=before.bookings)
        self.calendars[cluster] = found
        self.errors.pop(cluster, None)
        self.changed.emit()

    def _failed(self, cluster: str, error: TorchyardError) -> None:
        self.errors[cluster] = error
        self.changed.emit()

    def _fleet_changed(self) -> None:
        """Removes the lanes of clusters that are no longer in the fleet file."""
        names = {cluster.name for cluster in self._fleet.inventory.clusters}
        for known in (self.calendars, self.errors):
            for name in known.keys() - names:
                del known[name]
        self.changed.emit()
        if self._clock.isActive():
            self.read()


def _cluster_of(slot_id: str) -> str:
    """Returns the cluster of a node, given by the ID of its lane; "" for any other slot."""
    return slot_id.removeprefix(NODE_PREFIX).partition("/")[0] if is_of_cluster(slot_id) else ""

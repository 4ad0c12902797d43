"""The lanes of clusters' nodes with reservations and running jobs, which are read while a calendar is visible."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from PySide6.QtCore import QObject, QTimer, Signal

from torchyard_core.booking.model import Booking
from torchyard_core.errors import TorchyardError
from torchyard_gui.bridge.bookings_model import CalendarState
from torchyard_gui.bridge.fleet_model import FleetModel
from torchyard_gui.bridge.jobs import Job

if TYPE_CHECKING:
    from torchyard_core.engines.slurm.cluster_calendar import ClusterCalendar

READ_EVERY_MS = 60_000


class ClusterLanes(QObject):
    """The calendars of the fleet's clusters, read once a minute while they are watched."""

    changed = Signal()

    def __init__(self, fleet: FleetModel, parent: QObject | None = None):
        super().__init__(parent)
        self.calendars: dict[str, ClusterCalendar] = {}
        """The last known calendar of each cluster."""
        self.errors: dict[str, TorchyardError] = {}
        """The error of each cluster that has not answered the last request."""
        self._fleet = fleet
        self._reading: dict[str, Job] = {}
        self._clock = QTimer(self, interval=READ_EVERY_MS)
        self._clock.timeout.connect(self.read)
        fleet.hosts_changed.connect(self._fleet_changed)

    def watch(self, on: bool) -> None:
        """Sets whether a calendar is visible."""
        if on and not self._clock.isActive():
            self._clock.start()
            self.read()
        elif not on:
            self._clock.stop()

    def read(self) -> None:
        """Requests the calendar of each cluster that has no request in progress."""
        fleet = self._fleet
        for cluster in fleet.inventory.clusters:
            name = cluster.name
            if name in self._reading and not self._reading[name].is_finished:
                continue

            def ask(name: str = name) -> ClusterCalendar:
                from torchyard_core.engines.registry import read_cluster_calendar

                return read_cluster_calendar(fleet.fleet, name)

            self._reading[name] = fleet.jobs.run(
                ask, partial(self._arrived, name), partial(self._failed, name), owner=self
            )

    def merged(self, seen: CalendarState) -> CalendarState:
        """Returns a calendar with the lanes of the clusters."""
        if not self.calendars:
            return seen
        slots = tuple(slot for one in self.calendars.values() for slot in one.slots)
        bookings = tuple(booking for one in self.calendars.values() for booking in one.bookings)
        return replace(seen, slots=(*seen.slots, *slots), bookings=(*seen.bookings, *bookings))

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
